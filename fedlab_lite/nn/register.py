"""The register of networks: `MODELS` by name, their options, and `make_model`."""

from dataclasses import fields
from typing import Any

from flax import nnx

from fedlab_lite.nn.cnn import CNN, CNN5, NormCNN
from fedlab_lite.nn.equilibrium_nets import DEQMLP, DEQResNet, Solve
from fedlab_lite.nn.fl_deq import FLCNN, FLDEQCNN, FLDEQResNet, FLResNet
from fedlab_lite.nn.form import arguments, options_of
from fedlab_lite.nn.gaussian import GaussianCNN5, GaussianMLP
from fedlab_lite.nn.mlp import MLP
from fedlab_lite.nn.model import Model
from fedlab_lite.nn.resnet import ResNet, ResNet18
from fedlab_lite.nn.transformer import DEQTransformer, Transformer
from fedlab_lite.nn.vgg_alexnet import DNN, VGG11, AlexNet, AlexNetSmall
from fedlab_lite.util import InputError, choose
from fedlab_lite.util.fields import Allowed

# FL-DEQ, Sec. IV-A: "10 fixed point iterations for the forward and backward passes", as many for every sample.
_FL_SOLVE = {"gradient": "implicit", "max_iter": 10, "tol": 0.0, "backward_iter": 10, "backward_tol": 0.0}

MODELS: dict[str, tuple[type[nnx.Module], dict]] = {  # name: class, and options that differ from its defaults
    "mlp": (MLP, {}),
    "cnn": (CNN, {}),
    "cnn5": (CNN5, {}),
    "norm_cnn": (NormCNN, {}),
    "gaussian_mlp": (GaussianMLP, {}),
    "gaussian_cnn5": (GaussianCNN5, {}),
    "deq_mlp": (DEQMLP, {}),
    "resnet14": (ResNet, {"depth": 14}),
    "resnet20": (ResNet, {"depth": 20}),
    "resnet34": (ResNet, {"depth": 34}),
    "resnet18": (ResNet18, {}),
    "vgg11": (VGG11, {}),
    "alexnet": (AlexNet, {}),
    "alexnet_small": (AlexNetSmall, {"dropout": 0.05}),
    "dnn": (DNN, {}),
    "dnn_wide": (DNN, {"hidden": (1024, 512, 256, 128, 128)}),
    "deq_resnet_s": (DEQResNet, {"channels": 64}),
    "deq_resnet_m": (DEQResNet, {"channels": 128}),
    "fl_resnet": (FLResNet, {"layers": 5}),
    "fl_cnn": (FLCNN, {"layers": 10}),
    "fl_deq_resnet": (FLDEQResNet, {"layers": 1} | _FL_SOLVE),
    "fl_deq_cnn": (FLDEQCNN, {"layers": 4} | _FL_SOLVE),
    "transformer4": (Transformer, {"depth": 4}),
    "transformer8": (Transformer, {"depth": 8}),
    "transformer12": (Transformer, {"depth": 12}),
    "deq_transformer": (DEQTransformer, {}),
}


def model_options(name: str) -> dict[str, Allowed]:
    """The options of `make_model(name, ...)`, without input shape and number of classes, and what each may be."""
    choose("model", name, MODELS)
    module, defaults = MODELS[name]
    given = {"depth"} & defaults.keys()  # by the name
    return {option: allowed for option, allowed in sorted(options_of(module).items()) if option not in given}


def model_defaults(name: str) -> dict[str, Any]:
    """The default values of `model_options(name)`."""
    module, defaults = MODELS[name]
    plain = {option: parameter.default for option, parameter in arguments(module).items()}
    solve = {field.name: field.default for field in fields(Solve)}
    return {option: (solve | plain | defaults)[option] for option in model_options(name)}


def make_model(name: str, input_shape: tuple[int, ...], num_classes: int, **options: Any) -> Model:
    """Build the model `name` of the register for `input_shape` (without the batch axis).

    Raises `InputError` for unknown names or options, and where input, representation and head do not fit together.

    Example:
      >>> import jax
      >>> model = make_model("mlp", (8, 8, 1), 10, width=8)
      >>> params = model.init(jax.random.key(0))
      >>> sorted(params), model.apply(params, jax.numpy.zeros((3, 8, 8, 1))).shape
      (['head', 'representation'], (3, 10))
    """
    for option in options:
        choose(f"option of model {name}", option, model_options(name))
    choose("model", name, MODELS)
    module, defaults = MODELS[name]
    return Model.of(module, input_shape, num_classes, name=name, **(defaults | options))


def models_for(input_shape: tuple[int, ...], num_classes: int, per_position: bool = False) -> list[str]:
    """The names of the registered models that take such rows and predict per position, or once per row.

    >>> models_for((16,), 90, per_position=True)
    ['transformer4', 'transformer8', 'transformer12', 'deq_transformer']
    """

    def takes(name: str) -> bool:
        try:
            return make_model(name, input_shape, num_classes).per_position == per_position
        except InputError:
            return False

    return [name for name in MODELS if takes(name)]
