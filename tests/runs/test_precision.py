"""The precision of a run: a part of its name, of its history, and of its checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded_runs import fedavg, interrupted

from fedlab_lite import setup
from fedlab_lite.runs import Settings, batch, run, store
from fedlab_lite.runs.runner import run_name
from fedlab_lite.util import InputError
from fedlab_lite.util.jax_setup import PRECISIONS, precision_here

H200 = {"device": "NVIDIA H200", "precision": "float32"}


def test_it_changes_the_name_of_a_run_and_the_default_does_not():
    def name(**options):
        return run_name(Settings(**options), 0, "a" * 64)

    assert name() == name(precision="float32")
    assert len({name(precision=each) for each in PRECISIONS}) == len(PRECISIONS)
    with pytest.raises(InputError, match="tf32"):
        Settings(precision="tf23")


@pytest.fixture
def jax_precision():
    """JAX's setting is as before after the test."""
    before = jax.config.jax_default_matmul_precision
    yield
    jax.config.update("jax_default_matmul_precision", before)


@pytest.mark.usefixtures("jax_precision")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_setup_sets_it(precision):
    assert f"precision {precision}," in setup(precision=precision)
    assert precision_here() == precision
    assert jax.config.jax_default_matmul_precision == PRECISIONS[precision]


@pytest.mark.usefixtures("jax_precision")
def test_setup_refuses_an_unknown_one():
    before = jax.config.jax_default_matmul_precision
    with pytest.raises(InputError, match="unknown precision 'tf23'; did you mean 'tf32'"):
        setup(precision="tf23")
    assert jax.config.jax_default_matmul_precision == before


@pytest.mark.parametrize("setting", [None, "default", "bfloat16"])
def test_a_default_of_jax_has_the_name_of_what_a_device_makes_of_it(monkeypatch, setting):
    with jax.default_matmul_precision(setting):
        assert precision_here() == "float32"
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        assert precision_here() == "tf32"


def test_bfloat16_rounds_the_factors_of_products_but_not_on_a_cpu():
    x = jax.random.normal(jax.random.key(0), (16, 16))
    exact = jax.jit(jnp.matmul)(x, x)
    with jax.default_matmul_precision(PRECISIONS["bfloat16"]):
        product = jax.jit(jnp.matmul)
        text = product.trace(x, x).lower(lowering_platforms=("cuda",)).as_text()
        np.testing.assert_array_equal(product(x, x), exact)
    assert "lhs_precision_type = bf16" in text
    assert "accumulation_type = f32" in text


@pytest.mark.usefixtures("small_problem")
def test_a_history_has_it_with_the_executor_and_the_groups():
    history = run(fedavg(precision="tf32", num_rounds=1, seeds=(0,)))
    assert (history.precision, history.executor, history.clients_at_once) == ("tf32", "map", None)
    assert run(fedavg(num_rounds=1, seeds=(0,)), clients_at_once=2).clients_at_once == 2


@pytest.mark.usefixtures("small_problem")
@pytest.mark.parametrize(
    ("here", "why"),
    [(H200, "device cpu, and this machine has NVIDIA H200"), ({"device": "cpu", "precision": "tf32"}, "float32")],
)
def test_a_checkpoint_of_another_device_or_precision_is_refused(monkeypatch, here, why):
    file = interrupted(fedavg(), monkeypatch)
    monkeypatch.setattr(batch, "_made", lambda: here)
    with pytest.raises(InputError, match=f"was written with .*{why}"):
        run(fedavg())
    assert file.exists()


@pytest.mark.usefixtures("small_problem")
def test_a_checkpoint_that_does_not_say_it_goes_on_on_a_cpu_alone(monkeypatch, count_rounds):
    settings = fedavg(seeds=(3,))
    file = interrupted(settings, monkeypatch)
    tree = store.load_tree(file)
    del tree["made"]
    store.save_tree(file, tree)
    with monkeypatch.context() as patch:
        patch.setattr(batch, "_made", lambda: H200)
        with pytest.raises(InputError, match="was written with device unknown, and this machine has NVIDIA H200"):
            run(settings)
    count_rounds.clear()
    run(settings)
    assert count_rounds == [3, 4, 5]
