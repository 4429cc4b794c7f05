"""An equilibrium says something of its input: the share of z*'s variance that comes from x, at fresh parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlab_lite.nn import MODELS, make_model, transformer
from fedlab_lite.nn.register import model_options

SEEDS, ROWS, VOCABULARY = 5, 32, 12
NETWORKS = {  # all equilibrium networks of the registry, as narrow as 8 groups and 4 heads allow
    "deq_mlp": {"width": 32},
    "deq_resnet_s": {"channels": 8},
    "deq_resnet_m": {"channels": 8},
    "fl_deq_resnet": {"channels": 8},
    "fl_deq_cnn": {"channels": 8},
    "deq_transformer": {"width": 16, "layers": 1},
}
LEAST = 0.05  # these networks have 0.2 and more, a transformer whose embeddings go in as they are drawn 0.0002


def share_of_input(name: str) -> float:
    """How much of z*'s variance comes from x: V / (V + C), in [0, 1], the median over seeds.

    V is the variance of z* over a batch of different x, coordinate by coordinate, then their mean: 0 where z* ignores
    x. C is the variance over coordinates of the batch's mean z*: what z* has of itself, whatever x is. A text's
    positions are taken one at a time, V and C averaged over them, so that position embeddings do not count as input.
    Every row is solved for from the same start: a solve that is unfinished, or has several equilibria to choose from,
    would otherwise tell x by where it started. Plain iteration, as it compiles fastest.
    """
    text = name == "deq_transformer"
    shape = (6,) if text else (8, 8, 1)
    model = make_model(name, shape, VOCABULARY, solver="fixed_point", max_iter=20, warm_iter=20, **NETWORKS[name])
    equilibrium, key = model.equilibrium_shape(), jax.random.key(0)
    if text:
        x = jax.random.randint(key, (ROWS, *shape), 1, VOCABULARY)
    else:
        x = jax.random.uniform(key, (ROWS, *shape))

    @jax.jit
    def share(key):
        start = jax.random.normal(key, equilibrium[1:] if text else equilibrium)
        z = model.forward(model.init(key), x, z0=jnp.broadcast_to(start, (ROWS, *equilibrium)))[1].z
        z = z.reshape(ROWS, shape[0] if text else 1, -1)
        of_input, of_itself = z.var(0).mean(), z.mean(0).var(-1).mean()
        return of_input / (of_input + of_itself)

    return float(np.median([share(jax.random.key(seed)) for seed in range(SEEDS)]))


def test_every_equilibrium_network_is_measured():
    assert {name for name in MODELS if "solver" in model_options(name)} == set(NETWORKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_an_equilibrium_depends_on_its_input(name):
    assert share_of_input(name) > LEAST


@pytest.mark.slow
def test_embeddings_injected_as_drawn_go_under(monkeypatch):
    """Truncated normal of 0.02 beside a state that LayerNorm keeps at 1: the same z* for every text."""
    monkeypatch.setattr(transformer, "unit", lambda e: e)
    assert share_of_input("deq_transformer") < LEAST / 10
