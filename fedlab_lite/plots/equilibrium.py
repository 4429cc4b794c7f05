"""The picture of `deq.report`: how fast each solver converges, and what each gradient costs and how exact it is."""

import numpy as np

from fedlab_lite.deq import Report
from fedlab_lite.plots import style


def equilibrium_report(report: Report):
    """Draw the residual of each solver over evaluations, and the error of each gradient over its time.

    Dots of gradients have their kilobytes in their labels. The exact gradient's own residual is a dotted line.

    Returns: the figure.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedlab_lite.deq import report
      >>> layer = lambda a, x, z: jnp.tanh(a * z + x)
      >>> found = report(layer, 0.5, jnp.ones((1, 2)), jnp.zeros((1, 2)), jax.random.key(0))
      >>> [ax.get_xlabel() for ax in equilibrium_report(found).axes]
      ['evaluations of the layer', 'milliseconds, forward and backward']
    """
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(style.WIDTH, 3.2), layout="constrained")
    for position, (name, trace) in enumerate(report.traces.items()):
        left.plot(np.arange(1, len(trace) + 1), trace, markersize=3, **style.look(name, position))
    left.set(xlabel="evaluations of the layer", ylabel="residual ||f(z) - z||, median", yscale="log")
    left.set_title(f"spectral radius {np.median(report.spectral_radius):.2f}", fontsize=9)
    left.legend()
    for row in report.gradients:
        right.plot(row.milliseconds, row.error, "o", color="#0072B2", markersize=5, gid="labelled")
        label = f"{row.gradient}\n{row.kilobytes:,.0f} kB"
        right.annotate(label, (row.milliseconds, row.error), (4, 2), textcoords="offset points", fontsize=7)
    right.axhline(report.exact_residual, color="#777777", linestyle=(0, (1, 2)), label="left by the exact solve")
    right.set(xlabel="milliseconds, forward and backward", ylabel="relative error of the gradient", yscale="log")
    right.margins(x=0.25)
    right.legend()
    return fig
