"""kNN-Per: Marfoq et al., "Personalized Federated Learning through Local Memorization", 2022."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from fedlab_lite.algorithms.fedavg import FedAvg
from fedlab_lite.engine import ClientData, Models, Problem, in_chunks
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import ranged


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NearestNeighbours:
    """The predictor p = mix p_knn + (1 - mix) p_model, with votes of a client's k nearest training features.

    A vote has weight exp(-distance). The client's datastore holds the features and labels of its training rows under
    the model that is judged. For a text, it holds those of every token that counts.
    """

    k: int = field(metadata={"static": True})
    mix: float

    def __call__(self, problem: Problem, params: dict, train: ClientData) -> Callable:
        """Make `answer(x [B, ...]) -> (log-probabilities, solution)` for the client of these training rows."""
        model = problem.model

        def features(x):
            """The features `[B, positions, d]`, with one position per picture or per token."""
            found = jax.tree.leaves(model.represent(params, x))[0]
            return found.reshape(found.shape[0], -1, found.shape[-1])

        stored = in_chunks(features, train.x, train.size, 100)
        seen = jnp.arange(train.y.shape[0]) < train.size
        keep = problem.task.counted(train.y, seen).reshape(-1) > 0
        labels = train.y.reshape(-1)
        stored = stored.reshape(len(labels), -1)
        squares = jnp.sum(stored**2, -1)

        def votes(queries):
            """The votes for one row, `[positions, d] -> [positions, num_classes]`."""
            gaps = jnp.sum(queries**2, -1)[:, None] - 2 * queries @ stored.T + squares
            gaps = jnp.where(keep, jnp.maximum(gaps, 0), jnp.inf)
            closeness, nearest = jax.lax.top_k(-gaps, self.k)
            weight = jax.nn.softmax(-jnp.sqrt(-closeness))  # exp(-d), normalised, without underflow
            return jnp.einsum("pk,pkc->pc", weight, jax.nn.one_hot(labels[nearest], problem.data.num_classes))

        def answer(x):
            logits, solution = model.forward(params, x)
            neighbours = jax.lax.map(votes, features(x)).reshape(logits.shape)
            mixed = self.mix * neighbours + (1 - self.mix) * jax.nn.softmax(logits)
            return jnp.log(jnp.maximum(mixed, jnp.finfo(mixed.dtype).tiny)), solution

        return answer


@dataclass(frozen=True)
class KNNPer(FedAvg):
    """FedAvg, judged with a mixture of the global model's answer and the client's k nearest training rows, eq. (5)-(7).

    FeDEQ's code takes k = 10, plain Euclidean distances, and a mixture of equal halves. kNN-Per's own code squares the
    distances and divides by the dimension.
    """

    k: int = ranged(10, 1)  # neighbours that vote
    mix: float = ranged(0.5, 0, 1)  # lambda, weight of the neighbours

    def check(self, problem: Problem) -> None:
        for kind, data in (("client", problem.data), ("newcomer", problem.newcomers)):
            if data is not None and self.k > np.min(data.size):
                raise InputError(
                    f"k = {self.k} neighbours, but {kind} {int(np.argmin(data.size))} has {int(np.min(data.size))} "
                    "training rows; use a smaller k, or clients with more data"
                )

    def predictor(self) -> Callable:
        return NearestNeighbours(self.k, self.mix)

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        return {"global": self.models(problem, state, key)}

    def join(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        """The newcomers' models: they use their own datastores, and nothing is trained."""
        return {"": self.models(problem, state, key), **self.other_models(problem, state, key)}
