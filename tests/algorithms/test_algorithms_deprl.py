"""DePRL and what it is compared with: rounds by hand, masks against NumPy, what cannot be."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import KEY, blobs, init, quadratic_problem, step
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_lite.algorithms import dispfl, make_algorithm
from fedlab_lite.algorithms.dispfl import erk, largest, renew
from fedlab_lite.algorithms.parts import mean_gradient
from fedlab_lite.engine import Channel, ClientData, evaluate, make_graph, mix
from fedlab_lite.util import InputError

TARGETS = np.array([1.0, 5.0, 3.0])


def three(name, sizes=(2, 2, 2), graph="ring", **options):
    """Workers pull theta + w to 1, 5 and 3; a full-batch step of 0.5 on one of them halves what is missing."""
    problem = replace(quadratic_problem(TARGETS, sizes), graph=make_graph(graph, 3))
    algorithm = make_algorithm(name, **{"lr": 0.25, "batch_size": 4} | options)
    return problem, algorithm, init(algorithm, problem)


# --- DePRL --------------------------------------------------------------------------------------------------------


def test_deprl_by_hand():
    """tau = 2 head steps of alpha = 0.5, one of beta = 0.25 for phi, then the mean of all three; and once more."""
    problem, algorithm, state = three("deprl", head_lr=0.5, head_steps=2, steps=1)
    phi, w = np.zeros(3), np.zeros(3)
    for t in range(2):
        state = step(algorithm, problem, state, jnp.arange(3), jax.random.fold_in(KEY, t))
        for _ in range(2):
            w = w - 0.5 * (phi + w - TARGETS)
        phi = phi - 0.25 * (phi + w - TARGETS)
        phi = np.full(3, phi.mean())  # on a ring of three all are neighbours
        np.testing.assert_allclose(state["heads"]["w"], w, rtol=1e-5)
        np.testing.assert_allclose(state["thetas"]["theta"], phi, rtol=1e-5)
    own, shared = algorithm.models(problem, state, KEY)
    assert own["representation"]["theta"].shape == own["head"]["w"].shape == (3,)
    assert not shared


def test_deprl_on_a_star_by_hand():
    """Metropolis: the centre keeps 1/3, a leaf 2/3; uniform: a leaf takes half of the centre's."""
    for mixing, row in (("metropolis", [2 / 3, 1 / 3]), ("uniform", [0.5, 0.5])):
        problem, algorithm, state = three("deprl", graph="star", head_lr=0.5, head_epochs=1, mixing=mixing)
        state = step(algorithm, problem, state, jnp.arange(3))
        phi = 0.25 * TARGETS / 2  # w = y / 2, so y / 2 is missing
        np.testing.assert_allclose(state["heads"]["w"], TARGETS / 2, rtol=1e-5)
        np.testing.assert_allclose(state["thetas"]["theta"][0], phi.mean(), rtol=1e-5)
        np.testing.assert_allclose(state["thetas"]["theta"][1], row[0] * phi[1] + row[1] * phi[0], rtol=1e-5)


def test_deprl_in_its_codes_order_by_hand():
    """Mixing comes first, then passes: the models that are judged are those after training."""
    options = {"epochs": 2, "head_epochs": 1, "order": "mix_first"}
    problem, algorithm, state = three("deprl", sizes=(2, 3, 1), head_lr=0.5, **options)
    phi, w = np.zeros(3), np.zeros(3)
    for t in range(2):
        state = step(algorithm, problem, state, jnp.arange(3), jax.random.fold_in(KEY, t))
        phi = np.full(3, phi.mean())
        w = w - 0.5 * (phi + w - TARGETS)
        for _ in range(2):
            phi = phi - 0.25 * (phi + w - TARGETS)
        np.testing.assert_allclose(state["heads"]["w"], w, rtol=1e-5)
        np.testing.assert_allclose(state["thetas"]["theta"], phi, rtol=1e-5)
    error = algorithm.monitor(problem, state)["consensus_error"]
    np.testing.assert_allclose(error, (phi - phi.mean()) ** 2, rtol=1e-4)


def test_the_measure_of_the_theorem_by_hand():
    """M(k), eq. (10), at the mean of phi: both gradients, alpha tau / beta, and the consensus error."""
    steps = {"head_lr": 0.5, "head_steps": 2, "steps": 1}
    problem, algorithm, state = three("deprl", sizes=(2, 3, 1), graph="star", measures="theorem", **steps)
    state = step(algorithm, problem, state, jnp.arange(3))
    phi, w = (np.asarray(state[name][leaf]) for name, leaf in (("thetas", "theta"), ("heads", "w")))
    gradient = np.mean(phi.mean() + w - TARGETS)  # of (phi + w - y)^2 / 2 by phi, and by w
    expected = (1 + 0.5 * 2 / 0.25) * gradient**2 + np.mean((phi - phi.mean()) ** 2)
    assert np.ptp(phi) > 0
    np.testing.assert_allclose(algorithm.monitor(problem, state)["stationarity"], expected, rtol=1e-4)


def test_deprls_step_sizes_decay_together():
    decayed = make_algorithm("deprl", lr=0.4, head_lr=0.2, lr_decay=0.5).of_round(jnp.int32(2))
    assert (float(decayed.lr), float(decayed.head_lr)) == pytest.approx((0.1, 0.05))


def test_deprls_workers_share_phi_and_have_heads_of_their_own():
    problem = blobs()
    state = make_algorithm("deprl").init(problem, KEY)  # as training starts: the network is drawn by one program
    assert all(np.ptp(leaf, axis=0).max() == 0 for leaf in jax.tree.leaves(state["thetas"]))
    kernels = np.asarray(state["heads"]["kernel"])
    assert all((a != b).any() for a, b in itertools.combinations(kernels, 2))
    same = make_algorithm("deprl", start="same").init(problem, KEY)
    np.testing.assert_array_equal(same["heads"]["kernel"], np.stack([state["new_head"]["kernel"]] * len(kernels)))
    jax.tree.map(np.testing.assert_array_equal, same["thetas"], state["thetas"])


@pytest.mark.slow
def test_steps_and_passes_of_the_head_agree_where_they_are_the_same():
    """One step on all rows is one pass, whether every row is represented first or not."""
    problem = blobs(sizes=[8, 8, 8])
    states = []
    for options in ({"head_steps": 1}, {"head_epochs": 1}):
        algorithm = make_algorithm("deprl", batch_size=8, **options)
        states.append(step(algorithm, problem, init(algorithm, problem), jnp.arange(3))["heads"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *states)


# --- D-PSGD -------------------------------------------------------------------------------------------------------


def test_dpsgd_by_hand():
    """The gradient is taken before mixing: x - eta g(x) and not the mean of that."""
    problem, algorithm, state = three("dpsgd", graph="star")
    P = problem.graph.metropolis
    x = np.zeros(3)  # theta = w
    for t in range(2):
        state = step(algorithm, problem, state, jnp.arange(3), jax.random.fold_in(KEY, t))
        x = P @ x - 0.25 * (2 * x - TARGETS)
        np.testing.assert_allclose(state["client_params"]["head"]["w"], x, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [("dpsgd", {"order": "mix_first", "epochs": 2}), ("dispfl", {"density": 1.0, "steps": 2, "epochs": 7})],
)
def test_methods_that_mix_first_by_hand(name, options):
    """The mean over all three, then two full-batch steps: passes, or with full masks steps in their place."""
    problem, algorithm, state = three(name, **options)
    x = np.zeros(3)  # theta = w
    for t in range(2):
        state = step(algorithm, problem, state, jnp.arange(3), jax.random.fold_in(KEY, t))
        x = np.full(3, x.mean())
        for _ in range(2):
            x = x - 0.25 * (2 * x - TARGETS)
        np.testing.assert_allclose(state["client_params"]["representation"]["theta"], x, rtol=1e-5)
        np.testing.assert_allclose(state["client_params"]["head"]["w"], x, rtol=1e-5)


# --- mixing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", [None, Channel(clip=1e6, noise=0.0)])
def test_mixing_keeps_what_all_have_in_common(channel):
    """The rows of the matrix sum to one."""
    problem = replace(blobs(), graph=make_graph("star", 5), channel=channel)
    stacked = {"w": jnp.full((5, 3), 2.0), "b": jnp.arange(5.0)}
    mixed = problem.mix(problem.everyone(KEY), stacked, problem.graph.metropolis)
    np.testing.assert_allclose(mixed["w"], 2.0, rtol=1e-6)
    if channel is None:
        np.testing.assert_allclose(mixed["b"], problem.graph.metropolis @ np.arange(5), rtol=1e-6)
    assert ((mixed["b"] >= 0) & (mixed["b"] <= 4)).all()


@pytest.mark.slow
@pytest.mark.parametrize("mixing", ["metropolis", "uniform", "neighbour_mean"])
def test_a_sparse_graph_mixes_like_a_dense_one(mixing):
    graph = make_graph("random", 60, num_edges=80, seed=3)
    assert graph.neighbours.shape == (60, int(graph.degree.max()))
    matrix = getattr(graph, mixing)
    stacked = {"narrow": jax.random.normal(KEY, (60, 7)), "half": jnp.arange(60, dtype=jnp.bfloat16)}
    sparse = jax.jit(mix)(matrix, stacked, graph.neighbours)
    dense = mix(matrix, stacked)
    np.testing.assert_allclose(sparse["narrow"], dense["narrow"], atol=1e-6)
    assert sparse["half"].dtype == jnp.bfloat16
    np.testing.assert_allclose(sparse["half"].astype(float), dense["half"].astype(float), rtol=0.01)


# --- FedRoD -------------------------------------------------------------------------------------------------------


def test_fedrod_by_hand():
    """One full-batch step for two clients, one of which lacks a class, against softmaxes written out."""
    problem = blobs(num_clients=2, sizes=[9, 6], depth=0, features=4)
    y = np.array(problem.data.y)
    y[1] = np.minimum(y[1], 1)
    problem = replace(problem, data=replace(problem.data, y=y))
    algorithm = make_algorithm("fedrod", lr=0.3, epochs=1, batch_size=9)
    state = init(algorithm, problem)
    before = state["params"]
    after = step(algorithm, problem, state, jnp.arange(2))
    z = np.asarray(jax.vmap(problem.model.represent, (None, 0))(before, jnp.asarray(problem.data.x)))
    kernel, bias = (np.asarray(before["head"][name]) for name in ("kernel", "bias"))

    changes = []
    for i, size in enumerate((9, 6)):
        features, one_hot = z[i, :size], np.eye(3)[y[i, :size]]
        logits = features @ kernel + bias
        balanced = one_hot.sum(0) * np.exp(logits)
        changes.append(-0.3 * features.T @ (balanced / balanced.sum(1, keepdims=True) - one_hot) / size)
        both = np.exp(2 * logits)  # own heads start as copies
        gradient = features.T @ (both / both.sum(1, keepdims=True) - one_hot) / size
        np.testing.assert_allclose(after["personal"]["kernel"][i], kernel - 0.3 * gradient, atol=1e-5)
    want = kernel + (9 * changes[0] + 6 * changes[1]) / 15
    np.testing.assert_allclose(after["params"]["head"]["kernel"], want, atol=1e-5)

    own, shared = algorithm.models(problem, after, KEY)
    said = algorithm.predictor()(problem, shared | jax.tree.map(lambda leaf: leaf[1], own), None)(problem.data.x[1])[0]
    features = problem.model.represent(shared, problem.data.x[1])
    heads = [after["params"]["head"], jax.tree.map(lambda leaf: leaf[1], after["personal"])]
    np.testing.assert_allclose(said, sum(problem.model.classify(head, features) for head in heads), atol=1e-5)


def test_nothing_personal_reaches_the_others():
    """The generic part is the same whatever a client's own head is."""
    problem = blobs(num_clients=2, sizes=[9, 6])
    algorithm = make_algorithm("fedrod", lr=0.3, epochs=2)
    state = init(algorithm, problem)
    other = state | {"personal": jax.tree.map(lambda leaf: leaf + 1, state["personal"])}
    a, b = (step(algorithm, problem, each, jnp.arange(2))["params"] for each in (state, other))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), a, b)


def test_fedrods_newcomers_leave_the_generic_part():
    problem = blobs(num_clients=3, sizes=[30, 30, 30])
    algorithm = make_algorithm("fedrod", lr=0.3)
    seen, newcomers = problem.data.split(1)
    unseen = replace(problem, data=newcomers)
    state = init(algorithm, replace(problem, data=seen))
    joined = algorithm.join(unseen, state, KEY)
    assert joined[""][1] is state["params"]
    losses = [
        float(evaluate(unseen, *models, predictor=predictor)["loss"][0])
        for models, predictor in ((joined[""], algorithm.predictor()), (joined["global"], None))
    ]
    assert losses[0] < losses[1]


# --- DisPFL -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.data())
@settings(max_examples=30)
def test_largest_is_a_stable_sort(scores, data):
    count = data.draw(st.integers(0, len(scores)))
    scores = np.array(scores + [0] * (40 - len(scores)), np.uint32)  # one shape, one program
    want = np.zeros(40, bool)
    want[np.argsort(-scores.astype(int), kind="stable")[:count]] = True
    np.testing.assert_array_equal(LARGEST(scores, count), want)


LARGEST = jax.jit(largest)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=6), st.floats(0.05, 1.0))
@settings(max_examples=50)
def test_an_array_keeps_the_whole_part_of_its_share(shapes, density):
    """A share that rounding left just below 1 is 1, and density 1 keeps everything."""
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [*shapes, (7,)]]
    for share, array, kept in zip(
        erk([array.shape for array in arrays], density),
        arrays,
        make_algorithm("dispfl", density=density).kept(arrays),
        strict=True,
    ):
        assert kept == max(1, np.floor(share * array.size + 5e-7))
    assert make_algorithm("dispfl", density=1.0).kept(arrays) == [array.size for array in arrays]


def test_double_precision_makes_the_same_masks_and_full_gradients():
    with jax.enable_x64(True):
        bits = dispfl.random_bits(KEY, {"w": jnp.zeros(50)})["w"]
        assert bits.dtype == jnp.uint32
        np.testing.assert_array_equal(np.flatnonzero(largest(bits, 20)), np.sort(np.argsort(-bits.astype(int))[:20]))
        data = ClientData(jnp.array([1.0, 2.0, 3.0]), jnp.zeros(3), jnp.int32(3))
        full = mean_gradient(lambda w, b: jnp.sum(b.weight * b.x * w) / b.weight.sum(), jnp.float64(7), data, chunk=2)
        assert full.dtype == jnp.float64
        assert float(full) == 2.0


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_masks_lose_the_smallest_and_gain_the_most_wanted(share):
    rng = np.random.default_rng(0)
    size, wanted = rng.integers(0, 2**31 - 1, (2, 50)).astype(np.uint32)
    mask = np.zeros(50, bool)
    mask[rng.permutation(50)[:20]] = True
    after = np.asarray(renew(jnp.asarray(size), jnp.asarray(mask), jnp.asarray(wanted), 20, jnp.float32(share)))
    assert after.sum() == 20
    stay = sorted(np.flatnonzero(mask), key=lambda i: -int(size[i]))[: 20 - int(np.ceil(np.float32(share) * 20))]
    others = sorted(set(range(50)) - set(stay), key=lambda i: -int(wanted[i]))[: 20 - len(stay)]
    assert set(np.flatnonzero(after)) == {*stay, *others}


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=6), st.floats(0.05, 1.0))
@settings(max_examples=50)
def test_erk_keeps_the_density_of_the_whole(shapes, density):
    shapes = [*shapes, (7,)]  # a bias
    sizes = np.array([np.prod(shape) for shape in shapes])
    shares = np.array(erk(shapes, density))
    assert (shares >= 0).all()
    assert (shares <= 1).all()
    kept = shares @ sizes
    assert kept == pytest.approx(density * sizes.sum()) or (shares[shares < 1] == 0).all()
    sparse = [i for i in range(len(shapes)) if 0 < shares[i] < 1]
    ratios = [shares[i] * sizes[i] / sum(shapes[i]) for i in sparse]
    assert np.ptp(ratios or [0]) <= 1e-6 * max(ratios or [1])


@pytest.mark.slow
def test_dispfl_averages_over_those_who_hold_a_number(monkeypatch):
    """No training (lr = 0) and no renewal: one exchange on a star, against NumPy; then the masks stay full."""
    problem = replace(blobs(num_clients=4, sizes=[5] * 4, depth=0, features=4), graph=make_graph("star", 4))
    monkeypatch.setattr(dispfl, "PRUNE", 0.0)
    algorithm = make_algorithm("dispfl", lr=1e-30, epochs=1, density=0.4)
    state = init(algorithm, problem)
    noise = jax.tree.map(lambda leaf: jax.random.normal(KEY, leaf.shape), state["client_params"])
    state["client_params"] = jax.tree.map(jnp.multiply, noise, state["masks"])
    after = step(algorithm, problem, state, jnp.arange(4))
    closed = np.asarray(problem.graph.adjacency) + np.eye(4)
    for w, m, got in zip(*(jax.tree.leaves(tree) for tree in (
        state["client_params"], state["masks"], after["client_params"])), strict=True):  # fmt: skip
        w, m = np.asarray(w, float), np.asarray(m, float)
        sums, holders = (np.einsum("ij,j...->i...", closed, each) for each in (w, m))
        np.testing.assert_allclose(got, np.where(m > 0, sums / np.maximum(holders, 1), 0), atol=1e-6)
    counts = jax.tree.map(lambda mask: mask.reshape(4, -1).sum(1).tolist(), after["next_masks"])
    kept = algorithm.kept(jax.eval_shape(problem.model.init, KEY))
    assert counts == jax.tree.map(lambda n: [n] * 4, kept)


@pytest.mark.slow
@pytest.mark.parametrize("regrow", ["gradient", "random"])
def test_dispfls_density_is_constant_while_masks_move(regrow):
    problem = blobs(num_clients=3, sizes=[9, 6, 7])
    algorithm = make_algorithm("dispfl", lr=0.1, epochs=1, regrow=regrow)
    state = init(algorithm, problem)
    kept = jax.tree.leaves(algorithm.kept(jax.eval_shape(problem.model.init, KEY)))
    for t in range(2):
        before = state
        state = step(algorithm, problem, state, jnp.arange(3), jax.random.fold_in(KEY, t))
        for mask, n in zip(jax.tree.leaves(state["next_masks"]), kept, strict=True):
            assert mask.reshape(3, -1).sum(1).tolist() == [n] * 3
        moved = jax.tree.map(lambda a, b: int((a != b).sum()), state["next_masks"], before["next_masks"])
        assert sum(jax.tree.leaves(moved)) > 0
        jax.tree.map(lambda w, m: np.testing.assert_array_equal(w[~m], 0), state["client_params"], state["masks"])


@pytest.mark.slow
def test_dispfls_masks_differ_at_the_start():
    problem = blobs(num_clients=3, sizes=[9, 6, 7])
    masks = init(make_algorithm("dispfl"), problem)["masks"]["representation"]
    assert any((leaf[0] != leaf[1]).any() for leaf in jax.tree.leaves(masks))


# --- what cannot be -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("deprl", {"head_steps": 0}, "head_steps of algorithm deprl must be .* at least 1, got 0"),
        ("deprl", {"steps": 0}, "^steps of algorithm deprl must be .* at least 1, got 0"),
        ("deprl", {"order": "mix_frist"}, "order of .* must be one of .* got 'mix_frist'; did you mean 'mix_first'"),
        ("deprl", {"start": "samee"}, "start of algorithm deprl must be one of .* got 'samee'; did you mean 'same'"),
        ("deprl", {"mixing": "metropolice"}, "mixing of .* got 'metropolice'; did you mean 'metropolis'"),
        ("dpsgd", {"order": "train_first"}, "order of algorithm dpsgd must be one of together, mix_first"),
        ("dispfl", {"density": 0.0}, "density of algorithm dispfl must be .* above 0 and at most 1, got 0.0"),
        ("dispfl", {"density": 1.5}, "density of algorithm dispfl must be .* got 1.5"),
        ("dispfl", {"steps": 0}, "^steps of algorithm dispfl must be .* at least 1, got 0"),
        ("dispfl", {"horizon": 0}, "horizon of algorithm dispfl must be .* at least 1, got 0"),
    ],
)
def test_hyper_parameters_that_cannot_be(name, options, message):
    with pytest.raises(InputError, match=message):
        make_algorithm(name, **options)


def test_what_does_not_fit_the_problem():
    with pytest.raises(InputError, match="DePRL has no server and needs a graph"):
        make_algorithm("deprl").check(replace(blobs(), graph=None))
    with pytest.raises(InputError, match="FedRoD balances classes, and this task has none"):
        make_algorithm("fedrod").check(quadratic_problem([1.0, 2.0], [1, 1]))
