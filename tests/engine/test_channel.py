"""What a channel does to a message, to the server's mean and to every algorithm's rounds; and what messages weigh."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import KEY, assert_equal, blobs, cohort_of, init, quadratic_problem, round_program, some, step
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlab_lite.algorithms import ALGORITHMS, DisPFL, FedAvg, make_algorithm
from fedlab_lite.engine import Channel, message_bytes, message_count
from fedlab_lite.engine.channel import count, counting
from fedlab_lite.util import InputError

COHORT = jnp.array([0, 2, 3])
send = jax.jit(lambda channel, message, key: channel(message, key))


def message(scale=1.0):
    a, b = (jax.random.normal(key, shape) for key, shape in zip(jax.random.split(KEY), ((3, 2), (4,)), strict=True))
    return {"a": scale * a, "b": scale * b}


def means_agree(samples, expected):
    """Of `[n, ...]`, to five standard errors."""
    samples = np.asarray(samples, float)
    error = samples.std(0) / len(samples) ** 0.5
    assert np.all(np.abs(samples.mean(0) - expected) <= 5 * error + 1e-6)


# --- one message ------------------------------------------------------------------------------------------------------


@given(scale=st.floats(1e-3, 1e3), clip=st.floats(1e-3, 1e3))
@settings(max_examples=20)
def test_clip_shortens_to_its_norm_what_is_longer(scale, clip):
    sent = message(scale)
    norm, got = float(optax.tree.norm(sent)), send(Channel(clip=clip), sent, KEY)
    if norm <= clip:
        assert_equal(got, sent)
    else:
        assert float(optax.tree.norm(got)) == pytest.approx(clip, rel=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b * clip / norm, rtol=1e-5), got, sent)


def test_what_is_zero_stays_zero():
    zeros = jax.tree.map(jnp.zeros_like, message())
    assert_equal(send(Channel(clip=1.0), zeros, KEY), zeros)


def test_noise_is_a_share_of_the_clip():
    sent = {"w": jnp.full((200, 100), 1e-4)}  # of norm 0.014
    got = np.asarray(send(Channel(clip=2.0, noise=0.5), sent, KEY)["w"])
    assert got.std() == pytest.approx(1.0, rel=0.03)
    assert abs(got.mean()) < 0.04
    assert not np.array_equal(got, send(Channel(clip=2.0, noise=0.5), sent, jax.random.fold_in(KEY, 1))["w"])


def test_each_array_of_a_message_has_noise_of_its_own():
    """Else the difference of two arrays would show through without any."""
    got = send(Channel(clip=1.0, noise=1.0), {"a": jnp.zeros(2000), "b": {"c": jnp.zeros(2000)}}, KEY)
    assert abs(np.corrcoef(got["a"], got["b"]["c"])[0, 1]) < 0.1


def bytes_of(arrays):
    with counting() as found:
        count("up", arrays)
    return found["up"]


@given(shapes=st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=4))
def test_bytes_of_a_message(shapes):
    arrays = [jax.ShapeDtypeStruct(tuple(shape), jnp.float32) for shape in shapes]
    assert bytes_of(arrays) == 4 * sum(int(np.prod(shape)) for shape in shapes)


def test_bytes_are_those_of_the_types():
    assert bytes_of({"h": jnp.zeros(3, jnp.bfloat16), "n": jnp.zeros((), jnp.int32)}) == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clip": 0.0}, r"clip of the channel must be of type float \| None, above 0, got 0.0"),
        ({"clip": -1.0}, "clip of the channel must be .* above 0, got -1.0"),
        ({"clip": float("inf")}, "clip of the channel must be .* above 0, got inf"),
        ({"clip": float("nan")}, "clip of the channel must be .* above 0, got nan"),
        ({"clip": True}, r"clip of the channel must be of type float \| None, above 0, got True \(bool\)"),
        ({"clip": 1.0, "noise": -0.1}, "noise of the channel must be .* at least 0, got -0.1"),
        ({"clip": 1.0, "noise": float("nan")}, "noise of the channel must be .* at least 0, got nan"),
        ({"noise": 0.1}, "set message_clip as well"),
    ],
)
def test_channels_that_cannot_be(options, words):
    with pytest.raises(InputError, match=words):
        Channel(**options)


# --- to the server and over links -------------------------------------------------------------------------------------

TARGETS, SIZES = [1.0, 5.0, -2.0], [3, 1, 2]
CHANGES = {"w": jnp.array([[0.3, -0.2], [-0.1, 0.4], [0.2, 0.1]])}


def uplinks(channel, keys, weight=None, changes=CHANGES):
    """What the server makes of three clients' changes, for every key: `[keys, 2]`."""
    problem = replace(quadratic_problem(TARGETS, SIZES), channel=channel, weight=weight)

    def one(problem, key):
        return problem.uplink(problem.everyone(key), changes)["w"]

    return np.asarray(jax.jit(jax.vmap(one, (None, 0)))(problem, keys))


def test_the_mean_is_weighted():
    (got,) = uplinks(None, jax.random.split(KEY, 1))
    np.testing.assert_allclose(got, np.average(CHANGES["w"], axis=0, weights=SIZES), atol=1e-6)


def test_noise_keeps_the_mean():
    got = uplinks(Channel(clip=1.0, noise=0.3), jax.random.split(KEY, 4000))
    assert got.std() > 0.1
    means_agree(got, np.average(CHANGES["w"], axis=0, weights=SIZES))


def test_a_clients_message_does_not_depend_on_who_else_sends():
    problem = replace(blobs(sizes=[5, 5, 5, 5]), channel=Channel(clip=1.0, noise=0.5))
    rows = jax.random.normal(KEY, (4, 3))
    received = problem.transmit(some(0, 1, 2, 3), rows)
    np.testing.assert_array_equal(problem.transmit(some(3, 1), rows[jnp.array([3, 1])]), received[jnp.array([3, 1])])
    assert len(np.unique(np.asarray(received - rows)[:, 0].round(5))) == 4  # noise of one's own


def test_an_idle_place_has_no_weight():
    problem = blobs(sizes=[5, 5, 5])
    assert problem.sampled(some(2, 3, 0)).tolist() == [True, False, True]
    assert problem.weights(some(2, 3, 0)).tolist() == [5, 0, 5]


# --- every algorithm --------------------------------------------------------------------------------------------------

VARIANTS = {  # one for each way that a round sends messages
    "local": ("local", {}),
    "fedavg": ("fedavg", {}),
    "ditto": ("ditto", {}),
    "fedper": ("fedper", {}),
    "fedrep": ("fedrep", {}),
    "fedbabu": ("fedbabu", {}),
    "fedpac": ("fedpac", {}),
    "fedcr": ("fedcr", {"lr": 0.01}),
    "fedreco": ("fedreco", {}),
    "fedeq": ("fedeq", {}),
    "fedeq, argmin": ("fedeq", {"server": "argmin"}),
    "dec_fedavg": ("dec_fedavg", {}),
    "dec_fedprox": ("dec_fedprox", {}),
    "dfedavgm": ("dfedavgm", {}),
    "dfedadmm": ("dfedadmm", {}),
    "cmfd": ("cmfd", {}),
    "fedf_admm, params": ("fedf_admm", {"share": "params"}),
    "fedrod": ("fedrod", {}),
    "dpsgd": ("dpsgd", {}),
    "dispfl": ("dispfl", {}),
    "deprl": ("deprl", {}),
}


@pytest.fixture(scope="module")
def problem():
    return blobs(sizes=[9, 14, 7, 12], depth=0, features=4)


def test_rounds_that_are_inherited_are_those_of_a_variant():
    tested = {ALGORITHMS[name].round for name, _ in VARIANTS.values()}
    lacking = [name for name, algorithm in ALGORITHMS.items() if algorithm.round not in tested]
    assert not lacking, f"add {lacking} to VARIANTS: each has a round of its own"


@pytest.fixture(scope="module", params=VARIANTS)
def algorithm(request):
    name, options = VARIANTS[request.param]
    yield make_algorithm(name, **{"lr": 0.1} | options)
    jax.clear_caches()


@pytest.mark.slow
class TestEveryAlgorithm:
    @pytest.fixture(scope="class")
    @classmethod
    def problem(cls, algorithm, problem):
        """With a network that the algorithm takes."""
        if type(algorithm) is not ALGORITHMS["fedcr"]:
            return problem
        return blobs(sizes=[9, 14, 7, 12], model="gaussian_mlp", width=4, depth=0, features=4, latent=2)

    def test_rounds_stay_finite_and_keep_their_shapes(self, algorithm, problem):
        problem = replace(problem, channel=Channel(clip=1.0, noise=0.01))
        before = state = init(algorithm, problem)
        for t in range(3):
            state = step(algorithm, problem, state, cohort_of(algorithm, problem, COHORT), jax.random.fold_in(KEY, t))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
        assert jax.tree.map(lambda a: (a.shape, a.dtype), state) == jax.tree.map(lambda a: (a.shape, a.dtype), before)

    def test_nothing_of_a_client_reaches_others_but_through_the_channel(self, algorithm, problem):
        if type(algorithm) is not DisPFL:
            assert leaks(algorithm, problem) == set()

    def test_a_channel_that_does_nothing_is_none(self, algorithm, problem):
        """The same program, so the same bits."""
        state = jax.eval_shape(algorithm.init, problem, KEY)
        cohort = cohort_of(algorithm, problem, COHORT)
        texts = [
            round_program.lower(algorithm, replace(problem, channel=channel), state, cohort, KEY).as_text()
            for channel in (None, Channel())
        ]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["fedavg", "dec_fedavg"])
def test_numbers_that_do_nothing_give_the_bits_of_no_channel(name, problem):
    algorithm = make_algorithm(name, lr=0.1)
    state, cohort = init(algorithm, problem), cohort_of(algorithm, problem, COHORT)
    idle = replace(problem, channel=Channel(clip=1e9, noise=0.0))
    assert_equal(step(algorithm, idle, state, cohort), step(algorithm, problem, state, cohort))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedeq, argmin", "dec_fedavg", "fedf_admm, params"])
@pytest.mark.parametrize("options", [{"clip": 1.0}, {"clip": 1.0, "noise": 0.1}])
def test_each_part_by_itself(name, options, problem):
    """Of one algorithm for each way that messages take."""
    which, more = VARIANTS[name]
    algorithm = make_algorithm(which, lr=0.1, **more)
    problem = replace(problem, channel=Channel(**options))
    cohort = cohort_of(algorithm, problem, COHORT)
    state = jax.eval_shape(algorithm.init, problem, KEY)
    after = jax.eval_shape(step, algorithm, problem, state, cohort, KEY)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), after) == jax.tree.map(lambda a: (a.shape, a.dtype), state)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "where"), [("fedavg", "params"), ("fedrep", "theta"), ("fedeq", "theta")])
def test_a_round_moves_the_server_no_further_than_the_clip(name, where, problem):
    """What clients send is how they changed: the mean of clipped changes is no longer than the clip."""
    algorithm, state = make_algorithm(name, lr=0.1), init(make_algorithm(name, lr=0.1), problem)
    gaps = []
    for clip in (0.01, 100.0):
        clipped = replace(problem, channel=Channel(clip=clip))
        gaps.append(optax.tree.sub(step(algorithm, clipped, state, COHORT)[where], state[where]))
    short, long = (float(optax.tree.norm(gap)) for gap in gaps)
    assert short <= 0.01 * (1 + 1e-4)
    assert long > 0.1


# --- what does not pass the channel -----------------------------------------------------------------------------------


class Silence(Channel):
    """A channel over which nothing arrives: every message becomes zeros."""

    def __call__(self, message, key):
        return jax.tree.map(jnp.zeros_like, message)


jax.tree_util.register_pytree_node(Silence, lambda _: ((), None), lambda *_: Silence(clip=1.0))


def leaks(algorithm, problem):
    """Entries of the state that differ when client 0 has other rows, its own part left out, although nothing arrives.

    The numbers of rows are known to all.
    """
    x, y = np.array(problem.data.x), np.array(problem.data.y)
    x[0], y[0] = 1 - x[0], (y[0] + 1) % problem.data.num_classes
    states = []
    for data in (problem.data, replace(problem.data, x=x, y=y)):
        silent = replace(problem, channel=Silence(clip=1.0), data=data)
        state = init(algorithm, silent)
        for t in range(3):  # DisPFL's masks of one round are sent in the next but one
            state = step(algorithm, silent, state, cohort_of(algorithm, silent, COHORT), jax.random.fold_in(KEY, t))
        states.append(state)
    for state in states:
        state |= {name: jax.tree.map(lambda leaf: leaf[1:], state[name]) for name in {*algorithm.owned} & state.keys()}
    return {name for name in states[0] if not equal(states[0][name], states[1][name])}


def equal(a, b):
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


def test_dispfl_refuses_a_channel_with_noise(problem):
    """Its masks follow from the client's rows and go to all neighbours as they are."""
    algorithm = make_algorithm("dispfl", lr=0.1, epochs=1)
    assert "client_params" in leaks(algorithm, problem)
    with pytest.raises(InputError, match=r"DisPFL sends its masks without noise.* leave message_noise out"):
        algorithm.check(replace(problem, channel=Channel(clip=1.0, noise=0.5)))
    for channel in (None, Channel(clip=1.0), Channel(clip=1.0, noise=0.0)):
        algorithm.check(replace(problem, channel=channel))


def test_messages_of_a_round_are_counted_one_by_one(problem):
    """Each is noised, so each costs privacy."""

    class Twice(FedAvg):
        def round(self, problem, state, at):
            again = super().round(problem, state, at)
            return again | {"params": super().round(problem, again, at)["params"]}

    assert message_count(problem, make_algorithm("fedavg")) == {"up": 1, "down": 1}
    assert message_count(problem, Twice()) == {"up": 2, "down": 2}
    assert message_count(problem, make_algorithm("local")) == {"up": 0, "down": 0}


# --- bytes by hand ----------------------------------------------------------------------------------------------------

# Of `blobs()`: a layer 6 x 16 + 16, features 16 x 8 + 8, a head 8 x 3 + 3; 24 shared rows of 3 classes.
BODY, HEAD, OUTPUTS = (112, 136), 27, 24 * 3
SHARED, WHOLE = 4 * sum(BODY), 4 * (sum(BODY) + HEAD)


@pytest.mark.parametrize(
    ("name", "options", "number"),
    [
        ("local", {}, 0),
        ("fedavg", {}, WHOLE),
        ("ditto", {}, WHOLE),
        ("fedrep", {}, SHARED),
        ("fedeq", {}, SHARED),
        ("fedeq", {"server": "argmin"}, SHARED),
        ("dec_fedavg", {}, WHOLE),
        ("dfedadmm", {}, WHOLE),
        ("cmfd", {}, 4 * OUTPUTS),
        ("fedf_admm", {}, 4 * OUTPUTS),
        ("fedf_admm", {"share": "params"}, WHOLE),
    ],
)
def test_bytes_of_a_round(name, options, number):
    """Both ways are alike."""
    assert message_bytes(blobs(), make_algorithm(name, **options)) == {"up": number, "down": number}


def test_no_message_is_counted_unless_asked():
    """A round that is traced once, and counted never, leaves nothing behind."""
    problem, algorithm = blobs(), make_algorithm("fedavg")
    with counting() as outer:
        assert message_bytes(problem, algorithm)["up"] == WHOLE
    assert outer == {"up": 0, "down": 0}
