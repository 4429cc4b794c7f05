"""Trained models on disk: `save` writes those that clients are judged with, and `load` gives them back to predict.

A saved model is a folder of two files. Nothing is pickled, so reading one cannot run code.

| file         | holds                                                                                         |
| ---          | ---                                                                                           |
| `model.json` | format, network, inputs, labels, clients, algorithm, package version, and a checksum over all |
| `params.npz` | the parameters: `own/...` stacked over clients, `shared/...`, and `global/...` where there is |
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np

import fedlab_lite
from fedlab_lite.engine.algorithm import Algorithm, optimizers_of
from fedlab_lite.engine.devices import to_host
from fedlab_lite.engine.problem import Problem
from fedlab_lite.engine.saved_model import SavedModel
from fedlab_lite.nn import MODELS, Model
from fedlab_lite.util import CorruptFileError, InputError, files, sha256_of_arrays
from fedlab_lite.util.fields import Range, checks_arguments
from fedlab_lite.util.forms import check_form

FORMAT = 1  # of the folder; a newer one is refused
ABOUT, PARAMS = "model.json", "params.npz"
PIXELS, AS_GIVEN = "divided by 255 in the network", "used as they are"
RANGED = "scaled by `x_range` of their file: pass rows in the file's numbers through `scaled`"
_FORM: dict[str, Any] = {"format": int, "package_version": str, "data": str, "algorithm": dict, "parts": {"": [str]}}
_FORM |= {"network": {"name": str, "class": str, "options": dict}, "labels": {"number": int, "words": [str]}}
_FORM |= {"inputs": {"shape": [int], "dtype": str, "scaling": str}, "clients": {"number": int, "names": [str]}}


@checks_arguments
def save(
    folder: str | Path,
    problem: Problem,
    algorithm: Algorithm,
    state: dict,
    *,
    seed: Annotated[int, Range(0)] = 0,
    overwrite: bool = False,
) -> Path:
    """Save the models that the clients are judged with in a new folder; `load` reads them.

    The folder holds no training rows. It is written whole or not at all.

    Args:
      state: as `train` and `final_state` return it, its leaves stacked over seeds.
      seed: the place of the seed whose models are saved.
      overwrite: whether to replace a model that was saved in this folder.

    Raises:
      InputError: for a folder that is not empty, for a task that is no classification, and for models of a training
        that diverged. Also for an algorithm that answers with more than parameters, such as kNN-Per.
      OutputError: where the folder cannot be written.

    Example:
      >>> import pathlib, tempfile
      >>> from fedlab_lite.algorithms import FedPer
      >>> from fedlab_lite.data import federated
      >>> from fedlab_lite.engine import train
      >>> from fedlab_lite.nn import make_model
      >>> x, y = np.eye(2).repeat(20, 0), np.arange(2).repeat(20)
      >>> data = federated(x, y, owners=["Ada", "Bob"] * 20, label_words=["no", "yes"])
      >>> problem = Problem(data, make_model("mlp", data.input_shape, data.num_classes, width=8))
      >>> history, state = train(problem, FedPer(lr=0.1), num_rounds=5)
      >>> folder = save(pathlib.Path(tempfile.mkdtemp()) / "mine", problem, FedPer(lr=0.1), state)
      >>> load(folder).predict(x[[0, -1]], client="Bob").tolist()
      ['no', 'yes']
    """
    name, model, data = type(algorithm).__name__, problem.model, problem.data
    if not isinstance(model, Model):
        raise InputError(f"the model is {model!r}; `save` needs one of fl.make_model or fl.Model.of")
    if problem.task.headline != "accuracy":
        raise InputError(f"task {type(problem.task).__name__} is no classification, and only labels can be predicted")
    if algorithm.predictor() is not None:
        words = f"clients of {name} answer with more than one model's parameters, which `save` does not keep"
        raise InputError(f"{words}; train another algorithm, such as FedPer or Ditto")
    inputs: dict[str, Any] = {"shape": model.input_shape, "dtype": str(data.x.dtype)}
    inputs["scaling"] = PIXELS if data.x.dtype == np.uint8 else AS_GIVEN
    if data.x_range is not None:
        inputs |= {"scaling": RANGED, "range": data.x_range}
    about = {
        "format": FORMAT,
        "package_version": fedlab_lite.__version__,
        "algorithm": {"name": name} | _numbers(algorithm),
        "network": {"name": model.name, "class": model.module.__name__, "options": dict(model.options)},
        "inputs": inputs,
        "labels": {"number": model.num_classes, "words": data.label_words},
        "clients": {"number": problem.num_clients, "names": data.client_names},
        "data": data.source,
    }
    wrong = InputError(f"`state` has no models of seed {seed}; pass the state that fl.train or fl.final_state returned")
    if any(leaf.shape[:1] <= (seed,) for leaf in jax.tree.leaves(state)):
        raise wrong
    parts = _parts(problem, algorithm, jax.tree.map(lambda leaf: leaf[seed], state))
    about["parts"] = {part: sorted(tree) for part, tree in parts.items()}
    arrays = {path: to_host(leaf) for path, leaf in _by_path(parts).items()}
    about = json.loads(json.dumps(about))  # as it is read
    if _fitted(about, arrays, model) is None:
        raise wrong
    if broken := next((path for path, array in arrays.items() if not np.isfinite(array).all()), ""):
        advice = "train again with a smaller step size, or save another seed"
        raise InputError(f"the training of seed {seed} diverged: {broken} holds NaN or infinity; {advice}")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    text = json.dumps(about | {"checksum": _checksum(about, arrays)}, indent=2, ensure_ascii=False)
    contents = {ABOUT: f"{text}\n".encode(), PARAMS: buffer.getvalue()}
    return files.write_folder(Path(folder), contents, replace=overwrite)


def _parts(problem: Problem, algorithm: Algorithm, state: dict) -> dict[str, dict]:
    """The parts 'own' and 'shared' of the models, without empty ones, and 'global' where clients have their own."""
    own, shared = algorithm.models(problem, state, jax.random.key(0))
    alone, whole = algorithm.other_models(problem, state, jax.random.key(0)).get("global", ({}, {}))
    parts = {"own": own, "shared": shared, "global": whole if own and not alone else {}}
    return {part: tree for part, tree in parts.items() if tree}


def _numbers(algorithm: Algorithm) -> dict[str, Any]:
    """The hyper-parameters of an algorithm, without its optimisers, for readers."""
    optimizers = optimizers_of(type(algorithm))
    own = {name: value for name, value in vars(algorithm).items() if name not in optimizers}
    return {name: value if isinstance(value, int | float | None) else str(value) for name, value in own.items()}


def _by_path(tree: dict) -> dict[str, Any]:
    """The leaves of a tree by their paths, such as 'own/head/kernel'."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _fitted(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray], model: Model) -> dict[str, dict] | None:
    """The parts as trees of the network's form; None where the arrays do not fit the network."""
    one = jax.eval_shape(model.init, jax.random.key(0))
    parts = {part: {name: one.get(name) for name in names} for part, names in about["parts"].items()}
    given = {name for part in ("own", "shared") for name in parts.get(part, ())}
    told = [(about[what]["number"], about[what][each]) for what, each in (("labels", "words"), ("clients", "names"))]
    if not given == one.keys() == parts.get("global", one).keys() or any(len(each) not in (0, n) for n, each in told):
        return None
    if "own" in parts:
        clients = (about["clients"]["number"],)
        parts["own"] = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(clients + leaf.shape, leaf.dtype), parts["own"])
    shapes = {path: (leaf.shape, leaf.dtype) for path, leaf in _by_path(parts).items()}
    if shapes != {path: (array.shape, array.dtype) for path, array in arrays.items()}:
        return None
    return jax.tree.unflatten(jax.tree.structure(parts), [arrays[path] for path in shapes])


def _checksum(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    return sha256_of_arrays(dict(sorted(arrays.items())), json.dumps(about, sort_keys=True).encode())


def load(folder: str | Path, *, module: type | None = None) -> SavedModel:
    """Read the models that `save` wrote.

    Args:
      module: the class of the network, where it is your own and not one of `fl.make_model`.

    Raises:
      InputError: where there is no saved model, where a newer version of the package wrote it, and where its network
        is not known.
      CorruptFileError: for a damaged file.

    Example: see `save`; `load(folder).probabilities(x, client=0)` has a row of probabilities for each row of x.
    """
    folder = Path(folder)
    try:
        content, packed = ((folder / name).read_bytes() for name in (ABOUT, PARAMS))
    except OSError as error:
        why = f"{error.strerror}: {error.filename}"
        raise InputError(f"{folder} holds no saved model ({why}); fl.save writes one") from error
    try:
        about = json.loads(content)
        newer = about["format"] > FORMAT
    except Exception as error:  # any content
        raise _corrupt(folder / ABOUT, error) from error
    if newer:
        words = f"{folder} has format {about['format']}, written by fedlab_lite {about.get('package_version')}"
        raise InputError(f"{words}; this version reads formats up to {FORMAT}: update the package")
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as archive:
            arrays = dict(archive)
        right = about.pop("checksum") == _checksum(about, arrays)
        check_form(ABOUT, about, _FORM)
        np.dtype(about["inputs"]["dtype"])
    except Exception as error:  # any error that zip or NumPy raise for a damaged archive
        raise _corrupt(folder, error) from error
    if not right:
        raise _corrupt(folder, "its checksum does not match its content")
    network = about["network"]
    known = module or MODELS.get(network["name"], (None,))[0]
    if known is None or known.__name__ != network["class"]:
        words = f"{folder} needs the network class {network['class']}"
        raise InputError(f"{words}; pass it: fl.load(..., module={network['class']})")
    shape, classes = tuple(about["inputs"]["shape"]), about["labels"]["number"]
    model = Model.of(known, shape, classes, name=network["name"], **network["options"])
    params = _fitted(about, arrays, model)
    if params is None:
        words = f"{folder}, written by fedlab_lite {about['package_version']}, does not fit the network {model.name}"
        raise InputError(f"{words} of this version; train it again")
    return SavedModel(model, params, about)


def _corrupt(path: Path, reason: object) -> CorruptFileError:
    return CorruptFileError(f"{path} is damaged ({reason}). Nothing was changed; save the model again, or copy it anew")
