"""Networks and inputs that cannot be: refused with a message that says what is wrong."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from fedlab_lite.nn import MODELS, make_model
from fedlab_lite.util import InputError

FEMNIST, CIFAR, TEXT = (28, 28, 1), (32, 32, 3), (16,)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet19", {}, "unknown model 'resnet19'"),
        ("mlp", {"widht": 3}, "did you mean 'width'"),
        ("mlp", {"width": -1}, r"width of model mlp must be of type int, at least 1, got -1"),
        ("mlp", {"width": 2.5}, r"width of model mlp must be of type int, at least 1, got 2.5 \(float\)"),
        ("mlp", {"width": True}, r"width of model mlp must be of type int, at least 1, got True \(bool\)"),
        ("mlp", {"depth": -1}, "depth of model mlp must be of type int, at least 0, got -1"),
        ("cnn", {"channels": (4, -4)}, r"channels of model cnn .*, not empty, each at least 1, got \(4, -4\)"),
        ("cnn", {"channels": ()}, r"channels of model cnn .*, not empty, each at least 1, got \(\)"),
        ("norm_cnn", {"dropout": 1.0}, "dropout of model norm_cnn .*, at least 0 and below 1, got 1.0"),
        ("deq_mlp", {"max_iter": 0}, "max_iter of model deq_mlp must be of type int, at least 1, got 0"),
        ("deq_mlp", {"tol": float("nan")}, "tol of model deq_mlp must be of type float, at least 0, got nan"),
        (
            "resnet20",
            {"family": "imagenet"},
            "family of model resnet20 must be one of auto, femnist, cifar10, cifar100, got 'imagenet'",
        ),
        ("deq_mlp", {"kappa": 1.5}, "kappa of model deq_mlp must be of type float, at least 0 and below 1, got 1.5"),
        ("deq_mlp", {"kappa": 1.0}, "kappa"),
        ("deq_mlp", {"kappa": -0.1}, "kappa"),
        ("transformer4", {}, r"token ids, shape \(T,\)"),
        ("transformer8", {"depth": 3}, "unknown option"),
        (
            "deq_resnet_s",
            {"solver": "newton"},
            "solver of model deq_resnet_s must be one of .*anderson.*, got 'newton'",
        ),
        ("deq_resnet_s", {"channels": 12}, "multiple of 8"),
        ("resnet14", {"width": 10}, "multiple of 8"),
        ("resnet18", {"width": 10}, "multiple of 8"),
        ("resnet18", {"stem": "cifra"}, "did you mean 'cifar'"),
        ("resnet18", {"blocks": (2, 0)}, r"blocks of model resnet18 .*, not empty, each at least 1, got \(2, 0\)"),
        ("cnn", {"padding": "same"}, "padding of model cnn must be one of SAME, VALID, got 'same'"),
        ("norm_cnn", {"stride": 16}, r"inputs \(28, 28, 1\) are too small for a first convolution at stride 16"),
        ("cnn5", {"channels": (4, 4, 4)}, r"inputs \(28, 28, 1\) are too small for 3 convolutions of 5x5 \(VALID\)"),
    ],
)
def test_bad_models_are_refused_when_they_are_made(name, options, message):
    with pytest.raises(InputError, match=message):
        make_model(name, FEMNIST, 10, **options)


def test_wrong_input_shape_is_named():
    model = make_model("mlp", FEMNIST, 10, width=8)
    with pytest.raises(InputError, match=r"\(28, 28, 1\), got \(32, 32, 3\)"):
        model.apply(model.init(jax.random.key(0)), jnp.zeros((1, *CIFAR)))


def test_a_head_that_does_not_fit_is_named(monkeypatch):
    class Odd(nnx.Module):
        features = 5

        def __init__(self, input_shape, *, rngs):
            pass

        def __call__(self, x):
            return jnp.zeros((x.shape[0], 4))

    monkeypatch.setitem(MODELS, "odd", (Odd, {}))
    with pytest.raises(InputError, match=r"'odd' gives features \(1, 4\).* head rejects"):
        make_model("odd", FEMNIST, 10)
