"""The memory that a run takes at least, from shapes alone, and a refusal before it starts where that cannot fit."""

import jax

from fedlab_lite.engine import Algorithm, Problem
from fedlab_lite.util import InputError
from fedlab_lite.util.memory import free_memory
from fedlab_lite.util.progress import silent
from fedlab_lite.util.text import say

LARGE = 4e9  # bytes from which on a run says what it takes
ADVICE = "use a smaller network, or fewer clients, rows or trajectories at once"


class DoesNotFit(InputError):
    """A run that takes more memory than there is; the message ends with `ADVICE`."""


def needed(problem: Problem, algorithm: Algorithm, trajectories: int = 1) -> float:
    """The bytes of the state before and after a round, and of the rows; activations and gradients come on top.

    Example:
      >>> from fedlab_lite.algorithms import Ditto, FedAvg
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.nn import make_model
      >>> data = federated("digits", partition="iid", num_clients=4, train_size=80)
      >>> problem = Problem(data, make_model("mlp", data.input_shape, 10, width=1000))
      >>> needed(problem, Ditto()) > 3 * needed(problem, FedAvg())
      True
    """
    state = jax.eval_shape(algorithm.init, problem, jax.random.key(0))
    rows = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.data) if hasattr(leaf, "nbytes"))
    return 2.0 * trajectories * sum(_bytes(leaf) for leaf in jax.tree.leaves(state)) + rows


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return leaf.size * (8 if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended) else leaf.dtype.itemsize)


def free() -> float:
    """The bytes that this machine or all its accelerators can still give; infinity if unknown."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    if jax.default_backend() != "cpu":
        return sum(each["bytes_limit"] - each["bytes_in_use"] for each in stats) if all(stats) else float("inf")
    known = free_memory()
    return float("inf") if known is None else known


def check(what: str, problem: Problem, algorithm: Algorithm, trajectories: int) -> None:
    """Say what a large run takes. Raises `DoesNotFit` if it is more than there is."""
    takes, there = needed(problem, algorithm, trajectories), free()
    words = f"{what} takes at least {takes / 1e9:,.1f} GB of memory, and {there / 1e9:,.1f} GB are free"
    if takes > there:
        raise DoesNotFit(f"{words}; {ADVICE}")
    if takes > LARGE and not silent():
        say(words, error=True)
