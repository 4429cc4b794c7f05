"""Plots of individual clients: the labels that each client holds, and its accuracy, with one panel per run."""

from collections.abc import Mapping

import numpy as np

from fedlab_lite.data import Federated
from fedlab_lite.engine import History
from fedlab_lite.plots import style


def label_counts(data: Federated) -> np.ndarray:
    """The number of training rows per client and class, `[clients, classes]`."""
    return np.array([np.bincount(y[:n], minlength=data.num_classes) for y, n in zip(data.y, data.size, strict=True)])


def holdings(data: Federated):
    """Show `label_counts` as a shaded table, one row per client, with totals in the caption.

    Example:
      >>> from fedlab_lite.data import federated
      >>> data = federated("digits", partition="by_label", num_clients=10, train_size=100)
      >>> holdings(data).caption
      '10 clients with 10 rows and 2 labels each; each label is held by 2 clients'
    """
    import pandas as pd

    def span(numbers) -> str:
        least, most = int(min(numbers)), int(max(numbers))
        return f"{least:,}" if least == most else f"{least:,} to {most:,}"

    counts = label_counts(data)
    rows, labels, owners = counts.sum(1), (counts > 0).sum(1), (counts > 0).sum(0)
    said = f"{len(counts)} clients with {span(rows)} rows and {span(labels)} label{'s' * bool(max(labels) > 1)} each"
    said += f"; each label is held by {span(owners)} client{'s' * bool(max(owners) > 1)}"
    if data.shared_x is not None and len(data.shared_x):
        said += f"; {len(data.shared_x):,} shared samples without labels"
    table = pd.DataFrame(counts, pd.RangeIndex(len(counts), name="client"), range(counts.shape[1]))
    table = table.rename_axis(columns="label")
    return table.style.background_gradient(cmap="Blues", axis=None).set_caption(said)


def client_panels(histories: Mapping[str, History], printed: Mapping[str, float] | None = None):
    """Draw one panel per run: the accuracy of each client as a thin line, their mean in black.

    The panels share their axes and form two rows. There are at most six, and each shows the first seed. If `local` is
    among the runs, its mean is dashed in every panel; its clients get a panel if one is free. The majority baseline
    is dotted.

    Args:
      printed: run -> published final accuracy (percent) of the same setting, a hollow diamond at the last round.

    Returns: the figure.
    """
    import matplotlib.pyplot as plt

    across = 2 if len(histories) <= 4 else 3
    fig, axes = plt.subplots(2, across, figsize=(style.WIDTH, 4.5), sharex=True, sharey=True)
    alone = histories.get("local")
    shown = sorted(histories, key=lambda name: name == "local")[: axes.size]
    for ax, name in zip(axes.flat, shown, strict=False):
        run = histories[name]
        style.device_curves(run, ax)
        ax.lines[0].set_label("a client")
        ax.lines[-1].set_label("mean over clients")
        if alone is not None:
            mean = 100 * alone.client_curves[0].mean(1)
            ax.plot(alone.rounds, mean, color="#777777", linestyle="--", linewidth=1.4, label="mean of Local")
        style.constant_line({name: run}, ax, scale=100)
        if printed and name in printed:
            style.printed(ax, run.num_rounds, printed[name], "black", clip_on=False)
        ax.set(title=style.look(name)["label"] + (" (diverged)" if any(run.diverged) else ""), xlabel="")
    for ax in axes.flat[len(shown) :]:
        ax.remove()
    for column in axes.T:
        for lowest in [ax for ax in column if ax in fig.axes][-1:]:
            lowest.set(xlabel="communication round")
            lowest.xaxis.set_tick_params(labelbottom=True)
    for ax in axes[:, 0]:
        ax.set(ylabel="test accuracy (%)", ylim=(0, None))
    style.shared_legend(fig, ncols=6, columnspacing=1.2)
    return fig
