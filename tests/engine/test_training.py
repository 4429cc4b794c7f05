"""`train` with algorithms and tasks of one's own; batches of trajectories, and their draws."""

import inspect
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import KEY, blobs, quadratic_problem

from fedlab_lite.algorithms import ALGORITHMS, make_algorithm
from fedlab_lite.engine import Algorithm, Plan, train, training
from fedlab_lite.nn import Model
from fedlab_lite.util import InputError

# --- algorithms, networks and tasks of one's own ----------------------------------------------------------------------

CELL = '''
@dataclass(frozen=True)
class Cyclic(Algorithm):
    """The params of one client after the other."""

    epochs: int = 1
    share: float = 0.5

    def init(self, problem, key):
        return {"params": problem.model.init(key)}

    def update(self, problem, data, key, params):
        return self.train(problem.loss, params, data, key, epochs=self.epochs)

    def round(self, problem, state, at):
        trained = self.for_cohort(problem, self.update, at, shared=(state["params"],))
        change = problem.uplink(at, jax.tree.map(lambda new, old: self.share * (new - old), trained, state["params"]))
        return {"params": jax.tree.map(jnp.add, state["params"], change)}

    def models(self, problem, state, key):
        return {}, state["params"]
'''


def from_a_cell():
    """The class of a notebook cell: there is no file to read its source from."""
    names = {"dataclass": dataclass, "Algorithm": Algorithm, "jax": jax, "jnp": jnp, "__name__": "__main__"}
    exec(CELL, names)
    return names["Cyclic"]


class Wide(nnx.Module):
    """A layer of squares."""

    def __init__(self, input_shape, *, width: int = 8, rngs):
        self.layer = nnx.Linear(input_shape[0], width, rngs=rngs)
        self.features = width

    def __call__(self, x):
        return jnp.square(self.layer(x))


def test_what_a_notebook_cell_defines_can_be_trained():
    cyclic = from_a_cell()
    with pytest.raises((OSError, TypeError)):
        inspect.getsource(cyclic)
    problem = replace(blobs(), model=Model.of(Wide, (6,), 3, width=4, name="squares"))
    history, _ = train(problem, cyclic(lr=0.05), num_rounds=3, seeds=(0, 1), cohort_size=3, eval_every=2)
    assert history.metrics["loss"].shape == (2, 3)
    assert history.rounds.tolist() == [0, 2, 3]
    assert (history.metrics["loss"][:, -1] < history.metrics["loss"][:, 0]).all()
    assert not np.array_equal(*history.metrics["loss"])
    assert history.about == {"dataset": "blobs", "model": "squares", "algorithm": "Cyclic"}
    assert history.num_params == {"representation": 6 * 4 + 4, "head": 4 * 3 + 3}
    assert history.message_bytes == {"up": 4 * 43, "down": 0}  # this algorithm broadcasts past the channel
    assert history.settings is None
    again, _ = train(problem, from_a_cell()(lr=0.05), num_rounds=3, seeds=(1,), cohort_size=3, eval_every=2)
    np.testing.assert_array_equal(again.metrics["loss"][0], history.metrics["loss"][1])  # the cell was run once more


def test_any_metric_can_be_had_from_the_state():
    """Macro F1, which is no mean over clients: from all test rows, without a change of the package."""
    problem, algorithm = blobs(sizes=[30, 9, 20]), make_algorithm("fedrep", lr=0.05, epochs=1)
    history, state = train(problem, algorithm, num_rounds=4, seeds=(3, 5))
    data, model = problem.data, problem.model
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(state))
    for seed in range(2):
        own, shared = algorithm.models(problem, jax.tree.map(lambda leaf, seed=seed: leaf[seed], state), KEY)
        answers, labels = [], []
        for i, n in enumerate(data.test_size):
            params = shared | jax.tree.map(lambda leaf, i=i: leaf[i], own)
            answers.append(np.asarray(model.apply(params, data.test_x[i, :n])).argmax(-1))
            labels.append(data.test_y[i, :n])
        shares = [np.mean(a == b) for a, b in zip(answers, labels, strict=True)]
        assert history.final("accuracy", last=1)[seed] == pytest.approx(np.mean(shares), abs=1e-6)
        answers, labels = np.concatenate(answers), np.concatenate(labels)
        assert history.final("accuracy_pooled", last=1)[seed] == pytest.approx(np.mean(answers == labels), abs=1e-6)
        right = [np.sum((answers == label) & (labels == label)) for label in range(3)]
        found = [np.sum(answers == label) + np.sum(labels == label) for label in range(3)]
        f1 = np.mean([2 * r / max(f, 1) for r, f in zip(right, found, strict=True)])
        assert 1 / 3 < f1 <= 1


def test_newcomers_of_an_algorithm_without_join():
    seen, unseen = blobs().data.split(2)
    with pytest.raises(InputError, match="Cyclic does not define how newcomers join; add a method `join`"):
        train(replace(blobs(), data=seen, newcomers=unseen), from_a_cell()(), num_rounds=0)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedavg", {"num_rounds": -1}, "num_rounds must be of type int, at least 0, got -1"),
        ("fedavg", {"num_rounds": "3"}, r"num_rounds must be of type int, at least 0, got '3' \(str\)"),
        ("fedavg", {"num_rounds": True}, r"num_rounds must be of type int, at least 0, got True \(bool\)"),
        ("fedavg", {"num_rounds": 1, "eval_every": 0}, "eval_every must be of type int, at least 1, got 0"),
        (
            "fedavg",
            {"num_rounds": 1, "cohort_size": 1.5},
            "cohort_size must be of type int . None, .* got 1.5",
        ),
        (
            "fedavg",
            {"num_rounds": 1, "seeds": 3},
            r"seeds must be of type tuple\[int, ...\], .*got 3 \(int\)",
        ),
        ("fedavg", {"num_rounds": 1, "seeds": ()}, r"seeds must be of type tuple\[int, ...\], not empty"),
        ("fedavg", {"num_rounds": 1, "cohort_size": 6}, "cohort_size is 6 of 5 clients; use 1 to 5, or None"),
        ("fedavg", {"num_rounds": 1, "cohort_size": 0}, "cohort_size must be of type int . None, at least 1, got 0"),
        ("dec_fedavg", {"num_rounds": 1, "cohort_size": 3}, "all clients take part in each round of DecFedAvg"),
    ],
)
def test_trainings_that_cannot_be(name, options, words):
    with pytest.raises(InputError, match=words):
        train(blobs(), make_algorithm(name), **options)


def test_an_algorithm_that_is_none():
    with pytest.raises(InputError, match=r"algorithm is the class FedAvg; use an object: FedAvg\(\)"):
        train(blobs(), ALGORITHMS["fedavg"], num_rounds=1)
    with pytest.raises(InputError, match=r"algorithm is 'fedavg', not an Algorithm; use an object of a class"):
        train(blobs(), "fedavg", num_rounds=1)


# --- trajectories and draws -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("fedeq", {"server": "argmin"}), ("knn_per", {"k": 3}), ("fedf_admm", {})]
)
def test_trajectories_of_a_batch_agree_with_single_ones(name, options):
    """Seeds, step sizes and epochs; newcomers and held-out rows are judged, too."""
    data, unseen = blobs(sizes=[9, 14, 7, 12, 8]).data.split(2)
    data, validation = data.hold_out(0.3)
    problem = replace(blobs(sizes=[9, 9, 9]), data=data, newcomers=unseen, validation=validation)
    plan = Plan(2, cohort_size=None if name == "fedf_admm" else 2)
    trajectories = [
        (make_algorithm(name, lr=lr, epochs=epochs, **options), seed)
        for lr, epochs, seed in ((0.1, 1, 3), (0.05, 2, 7))
    ]
    states, together = training.advance(problem, trajectories, plan)
    for row, trajectory in enumerate(trajectories):
        state, (alone,) = training.advance(problem, [trajectory], plan)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), training.part(states, row, 2), state)
        assert together[row].metrics.keys() == alone.metrics.keys()
        for metric, values in alone.metrics.items():
            np.testing.assert_allclose(together[row].metrics[metric], values, atol=1e-5, err_msg=metric)
        np.testing.assert_allclose(together[row].client_curves, alone.client_curves, atol=1e-5)


def test_tuning_draws_differ_between_seeds():
    """Of copies tuned to be judged, and of newcomers: the global model that they start from is the same here."""
    problem = quadratic_problem([0.0, 0.0, 0.0], [6, 6, 6], theta=0.5, w=0.5)
    y = np.random.default_rng(0).normal(size=problem.data.y.shape).astype(np.float32)
    seen, unseen = replace(problem.data, y=y).split(1)
    algorithm = make_algorithm("fedavg_ft", lr=0.4, batch_size=1)
    history, _ = train(replace(problem, data=seen, newcomers=unseen), algorithm, num_rounds=0, seeds=(0, 1))
    for metric, differ in {"": True, "_global": False, "_unseen": True, "_unseen_global": False}.items():
        first, second = history.metrics[f"distance{metric}"][:, 0]
        assert (first != second) == differ, metric
