"""The rounds that `gpu.py` times: their clients, networks and order of rows, for ours and for PyTorch."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.data import Federated
from fedlab_lite.engine import Problem
from fedlab_lite.engine.groups import in_groups
from fedlab_lite.engine.training import place_problem
from fedlab_lite.nn import make_model

KEY = jax.random.key(0)


@dataclass(frozen=True)
class Workload:
    """A round of some clients of equal size."""

    title: str
    model: str
    algorithm: str = "fedavg"
    clients: int = 10
    rows: int = 80  # of each client
    batch_size: int = 10
    epochs: int = 2
    lr: float = 0.01
    options: tuple[tuple[str, int], ...] = ()  # of the model
    rho: float = 0.01  # FedEQ's

    @property
    def equilibrium(self) -> bool:
        return self.algorithm == "fedeq"

    @property
    def steps(self) -> int:
        return self.clients * self.epochs * (self.rows // self.batch_size)

    @property
    def shared(self) -> tuple[str, ...]:
        """The parts of the state that all clients start from, and that are averaged."""
        return ("theta",) if self.equilibrium else ("params",)

    @property
    def memory(self) -> tuple[int, ...]:
        """The shape of one row's equilibrium, channels first."""
        height, width, channels = self.network.equilibrium_shape()
        return channels, height, width

    @property
    def network(self):
        return make_model(self.model, (28, 28, 1), 62, **dict(self.options))

    def learner(self):
        more = {"head_epochs": 3, "rho": self.rho} if self.equilibrium else {}
        options = {"lr": self.lr, "batch_size": self.batch_size, "epochs": self.epochs}
        return make_algorithm(self.algorithm, **options, **more)

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Noise: pixels `[clients, rows, 28, 28, 1]`, uint8, and labels `[clients, rows]`."""
        rng = np.random.default_rng(0)
        shape = (self.clients, self.rows)
        return rng.integers(0, 256, (*shape, 28, 28, 1)).astype(np.uint8), rng.integers(0, 62, shape)

    def problem(self) -> Problem:
        clients = list(zip(*self.data(), strict=True))
        data = Federated.stack(clients, clients, name="noise", source="random pixels", num_classes=62)
        return place_problem(in_groups(Problem(data, self.network), self.learner(), self.clients))

    def start(self) -> tuple[dict, tuple[np.ndarray, np.ndarray], dict[str, np.ndarray]]:
        """For PyTorch: the state before the round, the data, and the orders `[clients, epochs, steps, batch]`."""
        problem, learner = self.problem(), self.learner()
        keys = problem.everyone(KEY).keys()
        if not self.equilibrium:
            orders = {"params": self.orders(keys, self.epochs)}
        else:
            of_head, of_theta = jnp.unstack(jax.vmap(jax.random.split)(keys), axis=1)
            orders = {"heads": self.orders(of_head, learner.head_epochs), "theta": self.orders(of_theta, self.epochs)}
        return flat(learner.init(problem, KEY)), self.data(), orders

    def orders(self, keys: jax.Array, epochs: int) -> np.ndarray:
        """The order in which `engine.local_train` takes the rows of each client."""

        def of(key, epoch):
            drawn = jax.random.uniform(jax.random.split(jax.random.fold_in(key, epoch))[0], (self.rows,))
            return jnp.argsort(drawn).reshape(-1, self.batch_size)

        return np.array(jax.jit(jax.vmap(jax.vmap(of, (None, 0)), (0, None)))(keys, jnp.arange(epochs)))


WORKLOADS = (
    Workload("FedAvg, CNN", "cnn"),
    Workload("FedAvg, ResNet-20", "resnet20"),
    Workload("FedEQ, DEQ-ResNet-S", "deq_resnet_s", "fedeq"),
)
SMALL = {
    "cnn": (("channels", (2, 3)), ("features", 16)),
    "resnet20": (("width", 8),),
    "deq_resnet_s": (("channels", 8),),
}


def shrunk(workload: Workload) -> Workload:
    """Two clients of two steps, and a narrow network."""
    return replace(workload, clients=2, rows=20, epochs=2, options=SMALL[workload.model])


def flat(state: dict) -> dict[str, dict[str, np.ndarray]]:
    """Parts of a state by path, as PyTorch has them: kernels of convolutions are `[..., out, in, k, k]`."""

    def leaves(tree, path=()):
        if isinstance(tree, dict):
            return {name: leaf for part, below in tree.items() for name, leaf in leaves(below, (*path, part)).items()}
        array = np.array(tree)
        if path[-1] == "kernel" and array.ndim >= 4:
            array = np.moveaxis(array, (-1, -2), (-4, -3))
        return {".".join(path): np.ascontiguousarray(array)}

    return {part: leaves(tree) for part, tree in state.items()}
