"""The Transformers: what a position may see, dropout, and gradients through the equilibrium."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from fedlab_lite.nn import make_model
from fedlab_lite.nn.transformer import UTLayers, attention
from fedlab_lite.util import InputError

NAMES = ["transformer4", "deq_transformer"]
VOCABULARY, LENGTH = 11, 6
TIGHT = {"layers": 1, "max_iter": 100, "tol": 1e-5}  # an equilibrium that the solver found, to compare with


@partial(jax.jit, static_argnums=0)
def forward(model, params, x, key=None):
    return model.forward(params, x, key=key)[0]


def make(name, **options):
    options = {"width": 8, "heads": 2, **options}
    return make_model(name, (LENGTH,), VOCABULARY, **options)


@pytest.fixture(params=NAMES, scope="module")
def case(request):
    """A model, parameters away from their start (biases and offsets too), token ids without padding."""
    model = make(request.param, **(TIGHT if request.param == "deq_transformer" else {}))

    @jax.jit
    def away():
        flat, unflatten = ravel_pytree(model.init(jax.random.key(0)))
        params = unflatten(flat + 0.3 * jax.random.normal(jax.random.key(1), flat.shape))
        return params, jax.random.randint(jax.random.key(2), (3, LENGTH), 1, VOCABULARY)

    return model, *away()


def test_attention_equals_flax():
    layers = UTLayers(1, 8, heads=2, dropout=0.0, rngs=nnx.Rngs(0))
    params = jax.tree.map(lambda leaf: leaf[0], layers.arrays())
    theirs = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(1))
    for i, part in enumerate((theirs.query, theirs.key, theirs.value)):
        part.kernel[...] = params["qkv"][:, 8 * i : 8 * i + 8].reshape(8, 2, 4)
    theirs.out.kernel[...] = params["out"].reshape(2, 4, 8)
    h = jax.random.normal(jax.random.key(0), (3, 5, 8))
    allowed = jnp.broadcast_to(jnp.tri(5, dtype=bool), (3, 5, 5))
    np.testing.assert_allclose(attention(params, h, allowed, 2), theirs(h, mask=allowed[:, None]), atol=1e-5)


def test_a_position_sees_nothing_later(case):
    model, params, x = case
    before = forward(model, params, x)
    assert before.shape == (3, LENGTH, VOCABULARY)
    after = forward(model, params, x.at[:, 3].set(x[:, 3] % (VOCABULARY - 1) + 1))
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-5)
    assert (np.abs(after - before).max((0, 2))[3:] > 0.03).all()


def test_an_unfinished_solve_tells_nothing_of_later_tokens():
    """The solver's mixing weights are a position's own, so this holds far from the equilibrium as well."""
    model = make("deq_transformer", layers=1, max_iter=6)
    params, x = model.init(jax.random.key(0)), jnp.arange(1, LENGTH + 1)[None]
    before, after = (forward(model, params, tokens) for tokens in (x, x.at[:, 3].set(9)))
    solution = model.forward(params, x)[1]
    assert solution.iterations.tolist() == [6]
    assert solution.trace.shape == (6, 1)
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6)


def test_no_position_sees_padding(case):
    """Whatever vector stands for padding, no other position's logits move; an empty row is finite."""
    model, params, x = case
    x = x.at[:, 2].set(0).at[2].set(0)
    shared = params["representation"]
    tokens = shared["embed"]["tokens"].at[0].add(jnp.arange(8.0))
    other = params | {"representation": shared | {"embed": shared["embed"] | {"tokens": tokens}}}
    a, b = np.asarray(forward(model, params, x)), np.asarray(forward(model, other, x))
    rest = [0, 1, 3, 4, 5]
    np.testing.assert_allclose(a[:2, rest], b[:2, rest], atol=1e-3)
    assert np.abs(a[:2, 2] - b[:2, 2]).max() > 0.03
    assert np.isfinite(a).all()


def test_dropout_is_drawn_from_the_key_and_off_without(case):
    model, params, x = case
    evaluated = forward(model, params, x)
    np.testing.assert_array_equal(forward(model, params, x), evaluated)
    first, second = (forward(model, params, x, jax.random.key(i)) for i in (0, 1))
    np.testing.assert_array_equal(forward(model, params, x, jax.random.key(0)), first)
    for a, b in (first, second), (first, evaluated):
        assert np.abs(a - b).max() > 1e-2
    features = jax.jit(model.represent)(params, x)
    classify = jax.jit(model.classify)
    np.testing.assert_allclose(classify(params["head"], features), evaluated, atol=1e-4)
    assert np.abs(classify(params["head"], features, key=jax.random.key(0)) - evaluated).max() > 1e-2


def test_dropout_keeps_the_mean_and_zero_is_off():
    def kept(dropout):
        layers = UTLayers(2, 8, heads=2, dropout=dropout, rngs=nnx.Rngs(0))
        return layers.masks(jnp.ones((50, 16), bool), jax.random.key(0))["kept"]

    masks = np.asarray(jax.jit(lambda: kept(0.1))())
    np.testing.assert_allclose(np.unique(masks), [0, 1 / 0.9], rtol=1e-6)
    assert abs(masks.mean() - 1) < 0.02
    assert kept(0.0) is None


def test_training_reaches_every_parameter_and_vmaps(case):
    model, params, x = case

    @jax.jit
    @jax.vmap
    def gradient(params, key):
        return jax.grad(lambda params: jnp.sum(model.forward(params, x, key=key)[0] ** 2))(params)

    stacked = jax.tree.map(lambda leaf: np.stack([leaf, 0.9 * leaf]), params)
    keys = jax.random.split(jax.random.key(3), 2)
    swapped = jax.tree.map(lambda leaf: leaf[::-1], stacked)
    both, other = (
        jax.tree.leaves(jax.tree.map(np.asarray, gradient(*a))) for a in ((stacked, keys), (swapped, keys[::-1]))
    )
    for a, b in zip(both, other, strict=True):
        assert np.isfinite(a).all()
        assert (np.abs(a).reshape(2, -1).max(1) > 0).all()
        np.testing.assert_allclose(a, b[::-1], atol=1e-3 * np.abs(a).max())


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_implicit_gradient_of_the_equilibrium_against_finite_differences(dropout):
    """With one key: dropout's masks hold through the solve, so the equilibrium is a smooth function of parameters."""
    with jax.enable_x64():
        model = make("deq_transformer", layers=1, dropout=dropout, gradient="implicit", tol=1e-12, max_iter=200)
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.init(jax.random.key(0)))
        layers = params["representation"]["layers"]  # weak layers make the cell a contraction
        params["representation"]["layers"] = jax.tree.map(lambda leaf: leaf / 2, layers)
        x = jnp.array([[1, 5, 2, 9, 3, 0]])

        @jax.jit
        def loss(params):
            logits, solution = model.forward(params, x, key=jax.random.key(1))
            return jnp.sum(jnp.sin(logits)), solution.residual

        assert float(loss(params)[1].max()) < 1e-9
        direction = jax.tree.map(lambda leaf: np.sin(np.arange(leaf.size) + 1.0).reshape(leaf.shape), params)
        moved = [jax.tree.map(lambda p, d, h=h: p + h * d, params, direction) for h in (1e-5, -1e-5)]
        slope = (loss(moved[0])[0] - loss(moved[1])[0]) / 2e-5
        gradient = jax.jit(jax.grad(lambda params: loss(params)[0]))(params)
        along = sum(np.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
        np.testing.assert_allclose(along, slope, rtol=2e-3)


@pytest.mark.slow
def test_it_learns_to_repeat():
    """Eighty steps on rows of one repeated token: the next one is known from the second position on."""
    model = make("deq_transformer", layers=1, width=16, max_iter=8)
    x = jnp.repeat(jax.random.randint(jax.random.key(0), (80, 16, 1), 1, VOCABULARY), LENGTH, 2)

    def loss(params, x, key):
        logits, _ = model.forward(params, x, key=key)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), x[..., None], -1).mean()

    @jax.jit
    def train(params, x):
        def step(params, batch):
            value, gradient = jax.value_and_grad(loss)(params, *batch)
            return jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient), value

        return jax.lax.scan(step, params, (x, jax.random.split(jax.random.key(1), 80)))

    _, losses = train(model.init(jax.random.key(2)), x)
    assert np.mean(losses[-10:]) < 0.3 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 10, "heads": 4}, "multiple of 4"),
        ({"dropout": 1.0}, "dropout of model transformer8 must be of type float, at least 0 and below 1, got 1.0"),
    ],
)
def test_impossible_layers_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        make("transformer8", **options)


def test_token_ids_are_integers():
    model = make("transformer4")
    with pytest.raises(InputError, match="integers"):
        model.apply(model.init(jax.random.key(0)), jnp.ones((1, LENGTH)))
