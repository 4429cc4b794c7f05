"""Check a printed table of layers: compare its rows with each other and with our network.

A table comes from `papers.published`. Its rows are named 'conv1.weight', 'conv1.bias', 'pool1', 'fc9.weight', in the
paper's order. Its columns are 'shape', which is `[C_in, C_out, k, k]`, `[in, out]` or `[out]`, and 'stride'.
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple


class Step(NamedTuple):
    """The input that a row receives from the rows above, and the input size that it prints."""

    side: int  # of the input picture, in pixels; 1 after flattening
    arrives: int  # channels, or features for a dense layer; for a bias, the outputs of its weight
    takes: int


def follow(table: Iterable[Mapping[str, Any]], *, side: int, channels: int) -> dict[str, Step]:
    """The input of each weight and bias of a table, for a network input of `side` pixels.

    Convolutions keep a picture's side, except for their stride. The first dense layer takes the flattened picture.

    Example:
      >>> table = [{"name": "conv1.weight/shape", "value": [3, 8, 3, 3]}, {"name": "pool1/stride", "value": 2}]
      >>> follow([*table, {"name": "fc2.weight/shape", "value": [32, 10]}], side=4, channels=3)["fc2.weight"]
      Step(side=2, arrives=32, takes=32)
    """
    steps = {}
    for entry in table:
        row, _, column = entry["name"].partition("/")
        value, kind = entry["value"], row.rpartition(".")[2]
        if column == "stride":
            side = side // value if "pool" in row else -(-side // value)
        elif column == "shape" and kind == "weight":
            dense = len(value) == 2
            steps[row] = Step(side, channels * side**2 if dense else channels, value[0])
            side, channels = 1 if dense else side, value[1]
        elif column == "shape" and kind == "bias":
            steps[row] = Step(side, channels, value[0])
    return steps


def shapes(params: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of a network whose head is its last layer, with a table's names and order of axes.

    Example:
      >>> import jax
      >>> from fedlab_lite.nn import make_model
      >>> shapes(jax.eval_shape(make_model("dnn", (9,), 5, hidden=(4,)).init, jax.random.key(0)))
      {'fc1.weight': (9, 4), 'fc1.bias': (4,), 'fc2.weight': (4, 5), 'fc2.bias': (5,)}
    """
    body = params["representation"]
    found = {}
    layers = [*body.get("convs", {}).values(), *body["dense"]["layers"].values(), params["head"]]
    for number, layer in enumerate(layers, 1):
        *space, inputs, outputs = layer["kernel"].shape
        name = f"{'conv' if space else 'fc'}{number}"
        found[f"{name}.weight"], found[f"{name}.bias"] = (inputs, outputs, *space), layer["bias"].shape
    return found


def compare_layers(table: Iterable[Mapping[str, Any]], ours: Mapping[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    """Compare each weight and bias of a table with ours: sizes 'ours' and 'published', and whether the shape 'holds'.

    >>> printed = [{"name": "fc1.bias/shape", "value": [64], "where": "Table 1"}]
    >>> compare_layers(printed, {"fc1.bias": (192,)})[0]["shape"]
    '192'
    """
    return [
        {
            "name": row,
            "ours": prod(ours[row]),
            "published": prod(entry["value"]),
            "holds": tuple(entry["value"]) == ours[row],
            "shape": "x".join(map(str, ours[row])),
            "printed": "x".join(map(str, entry["value"])),
            "where": f"{entry['where']}: its entries",
        }
        for entry in table
        for row, _, column in [entry["name"].partition("/")]
        if column == "shape"
    ]
