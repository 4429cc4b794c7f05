"""Plots of a hyper-parameter sweep on one or several federations: curves, and how results rank across values.

Runs are named "column/value". A column is a federation or a variant of the algorithm.
"""

from collections.abc import Mapping, Sequence

from fedlab_lite.engine import History, mean_and_band
from fedlab_lite.plots.style import literal, name_diverged
from fedlab_lite.runs import Settings

DATA = {"fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "femnist": "FEMNIST"}
DATA |= {"shakespeare": "Shakespeare", "harbox": "HARBox"}
NETWORKS = {"mlp": "MLP", "deq_mlp": "DEQ-MLP", "deq_resnet_s": "DEQ-ResNet-S", "deq_resnet_m": "DEQ-ResNet-M"}
NETWORKS |= {"deq_transformer": "DEQ-Transformer"} | {f"resnet{depth}": f"ResNet-{depth}" for depth in (14, 20, 34)}
NETWORKS |= {f"transformer{depth}": f"Transformer-{depth}" for depth in (4, 8, 12)}
NETWORKS |= {"cnn": "CNN", "cnn5": "CNN-5", "norm_cnn": "CNN with norms", "resnet18": "ResNet-18", "vgg11": "VGG-11"}
NETWORKS |= {"gaussian_mlp": "Gaussian MLP", "gaussian_cnn5": "Gaussian CNN-5", "alexnet": "AlexNet", "dnn": "DNN"}
NETWORKS |= {"alexnet_small": "AlexNet, small", "dnn_wide": "DNN, wide", "fl_resnet": "FL-ResNet", "fl_cnn": "FL-CNN"}
NETWORKS |= {"fl_deq_resnet": "FL-DEQ-ResNet", "fl_deq_cnn": "FL-DEQ-CNN"}


def by_column(histories: Mapping[str, History], option: str) -> dict[str, dict[float, History]]:
    """Group runs by column and by value of an option: column -> value -> run.

    Runs whose algorithm has no such option are left out.
    """
    found: dict[str, dict[float, History]] = {}
    for name, run in histories.items():
        options = dict(run.settings.algorithm_options) if run.settings else {}
        if option in options:
            found.setdefault(name.rpartition("/")[0], {})[options[option]] = run
    return found


def federation(settings: Settings) -> str:
    """A federation's name in two lines: its data; its number of clients and its partition.

    >>> federation(Settings(dataset="cifar10", partition="by_label", num_clients=100, classes_per_client=5))
    'CIFAR-10\\n100 clients, 5 classes each'
    """
    data = DATA.get(settings.dataset, literal(settings.dataset))
    return f"{data}\n{settings.num_clients} clients, {division(settings)}"


def division(settings: Settings) -> str:
    """How the rows are divided among the clients, in words.

    >>> division(Settings(partition="dirichlet", alpha=0.3)), division(Settings(partition="natural"))
    ('Dirichlet 0.3', 'by writer')
    """
    if settings.partition in ("by_label", "by_class_cycle"):
        return f"{settings.classes_per_client} classes each" if settings.classes_per_client > 1 else "1 class each"
    if settings.partition in ("dirichlet", "dirichlet_capped"):
        return f"Dirichlet {settings.alpha:g}"
    if settings.partition == "natural":
        return "by writer" if settings.dataset != "shakespeare" else "by role"
    return settings.partition


def sweep_look(value: float, values: Sequence[float]) -> dict[str, object]:
    """The colour, marker, label and marker size of a value of rho in a sweep; larger values are lighter."""
    import matplotlib as mpl

    position = list(values).index(value)
    colour = mpl.colormaps["viridis"](0.92 * position / max(1, len(values) - 1))
    return {"color": colour, "marker": "osD^vP"[position % 6], "label": rf"$\rho$ = {value:g}", "markersize": 4}


def sweep_curves(runs: Mapping[float, History], metric: str, ax, *, scale: float = 1.0, begin: int = 0) -> None:
    """Draw one line per value of rho: mean over seeds, with a band of ± one standard deviation.

    The line of a diverged run ends where its loss is no longer finite, and the panel names the run.

    Args:
      scale: factor on the values (100 for percent).
      begin: the first evaluation to draw; 1 for a metric that is 0 before training on a logarithmic axis.
    """
    for value, run in runs.items():
        curve = scale * run.values(metric)[:, begin:]
        mean_and_band(ax, run.rounds[begin:], curve, sweep_look(value, list(runs)))
    name_diverged(ax, {rf"$\rho$ = {value:g}": run for value, run in runs.items()})
    ax.set(xlabel="communication round")
