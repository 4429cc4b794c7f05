"""DePRL's networks: Tables 3 to 6 layer by layer, the two ways to split them, and the tables' own slips."""

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers import unlabelled

from fedlab_lite import plots
from fedlab_lite.analysis import layer_tables
from fedlab_lite.nn import count_params, make_model, model_defaults
from fedlab_lite.papers import presets
from fedlab_lite.util import InputError

mpl.use("agg")
CIFAR, FASHION, HARBOX = (32, 32, 3), (28, 28, 1), (900,)
KEY = jax.random.key(0)
TINY = {  # name: input, classes, options
    "vgg11": (CIFAR, 10, {"width": 2}),
    "alexnet": (FASHION, 10, {"width": 2}),
    "alexnet_small": (FASHION, 10, {"width": 8}),
    "dnn": ((9,), 5, {"hidden": (16, 12, 8)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg11", "alexnet", "dnn", "norm_cnn"])
def test_pixels_of_16_bits_are_seen_as_those_of_8(name):
    shape = (28, 28, 1)
    small = {"norm_cnn": {"features": 8}, "dnn": {"hidden": (8, 8)}}.get(name, {"width": 2})
    model = make_model(name, shape, 3, **small)
    params, x = model.init(KEY), jax.random.randint(KEY, (2, *shape), 0, 256)
    apply = jax.jit(model.apply)
    seen = [apply(params, (x * factor).astype(kind)) for factor, kind in ((1, jnp.uint8), (257, jnp.uint16))]
    np.testing.assert_allclose(*seen, rtol=1e-4, atol=1e-5)


def shapes(name, shape, classes, **options):
    return jax.eval_shape(make_model(name, shape, classes, **options).init, KEY)


def small(name, **options):
    shape, classes, own = TINY[name]
    return make_model(name, shape, classes, **own, **options)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "last", "classifier"),
    [
        ("vgg11", CIFAR, 10, (9_745_792, 5_130), (9_220_480, 530_442)),
        ("alexnet", FASHION, 10, (23_230_144, 40_970), (2_250_432, 21_020_682)),
        ("alexnet_small", FASHION, 10, (2_503_616, 1_290), (2_454_208, 50_698)),
        ("dnn", HARBOX, 5, (633_792, 325), (625_536, 8_581)),
        ("dnn_wide", HARBOX, 5, (1_628_160, 645), (1_611_648, 17_157)),
    ],
)
def test_counts_of_both_splits(name, shape, classes, last, classifier):
    for split, expected in (("last", last), ("classifier", classifier)):
        params = shapes(name, shape, classes, split=split)
        assert (count_params(params["representation"]), count_params(params["head"])) == expected
    assert sum(last) == sum(classifier)


def test_counts_of_resnet18_are_the_codes():
    """Its 9,600 running means and variances, which it mixes too, are no parameters and do not exist here."""
    params = shapes("resnet18", CIFAR, 100)
    assert (count_params(params["representation"]), count_params(params["head"])) == (11_168_832, 51_300)


VGG_WIDTHS = (3, 64, 128, 256, 256, 512, 512, 512, 512)


def test_layers_of_vgg11():
    found = layer_tables.shapes(shapes("vgg11", CIFAR, 10))
    assert len(found) == 22
    for number in range(1, 9):
        inputs, outputs = VGG_WIDTHS[number - 1 : number + 1]
        assert found[f"conv{number}.weight"] == (inputs, outputs, 3, 3)
        assert found[f"conv{number}.bias"] == (outputs,)
    assert [found[f"fc{n}.weight"] for n in (9, 10, 11)] == [(512, 512), (512, 512), (512, 10)]


@pytest.mark.parametrize(
    ("name", "kernels", "dense"),
    [
        ("alexnet", (3, 3, 3, 3, 3), [(1024, 4096), (4096, 4096), (4096, 10)]),
        ("alexnet_small", (11, 5, 3, 3, 3), [(256, 128), (128, 128), (128, 10)]),
    ],
)
def test_layers_of_the_two_alexnets(name, kernels, dense):
    found = layer_tables.shapes(shapes(name, FASHION, 10))
    widths = (1, 64, 192, 384, 256, 256)
    for number, size in enumerate(kernels, 1):
        assert found[f"conv{number}.weight"] == (*widths[number - 1 : number + 1], size, size)
    assert [found[f"fc{n}.weight"] for n in (6, 7, 8)] == dense


def test_layers_of_the_dense_network():
    found = layer_tables.shapes(shapes("dnn", HARBOX, 5))
    assert list(found.values())[::2] == [(900, 512), (512, 256), (256, 128), (128, 64), (64, 5)]


@pytest.mark.parametrize(
    ("name", "options", "sides"),
    [
        ("vgg11", {}, [16, 8, 8, 4, 4, 2, 2, 1]),
        ("alexnet", {}, [8, 4, 4, 4, 2]),
        ("alexnet_small", {}, [4, 2, 2, 2, 1]),
    ],
)
def test_sides_of_pictures(name, options, sides):
    """32x32, and 28x28 in its frame of zeros."""
    for shape in (CIFAR, FASHION):
        model = make_model(name, shape, 10, **options)
        layers = jax.eval_shape(model.activations, shapes(name, shape, 10), jnp.zeros((1, *shape)))
        assert [layer.shape[1] for layer in layers.values() if layer.ndim == 4] == sides


@pytest.mark.parametrize("name", TINY)
def test_forward_and_activations(name):
    model = small(name)
    params, x = model.init(KEY), jax.random.uniform(jax.random.key(1), (3, *TINY[name][0]))

    @jax.jit
    def both(params):
        return model.activations(params, x), model.apply(params, x)

    found, logits = both(params)
    names = [f"conv{i}" for i in range(1, len(params["representation"].get("convs", ())) + 1)]
    dense = [f"dense{i}" for i in range(1, len(params["representation"]["dense"]["layers"]) + 1)]
    assert list(found) == [*names, *dense, "head"]
    np.testing.assert_allclose(found["head"], logits, rtol=1e-5, atol=1e-6)
    assert logits.shape == (3, TINY[name][1])
    assert np.isfinite(logits).all()
    assert all(float(jnp.abs(layer).max()) > 0 for layer in found.values())


@pytest.mark.parametrize("name", ["alexnet", "dnn"])
def test_both_splits_are_one_network(name):
    """The same layers, cut elsewhere, give the same logits."""
    model, cut = small(name), small(name, split="classifier")
    params = model.init(KEY)
    layers = params["representation"]["dense"]["layers"]
    shared = len(layers) - (2 if name == "alexnet" else 1)
    body = {part: tree for part, tree in params["representation"].items() if part != "dense"}
    if shared:
        body["dense"] = {"layers": {str(i): layers[str(i)] for i in range(shared)}}
    rest = {str(i - shared): layers[str(i)] for i in range(shared, len(layers))}
    moved = {"representation": body, "head": {"hidden": {"layers": rest}, "last": params["head"]}}
    assert jax.tree.map(jnp.shape, moved) == jax.tree.map(jnp.shape, jax.eval_shape(cut.init, KEY))
    x = jax.random.uniform(jax.random.key(1), (2, *TINY[name][0]))
    np.testing.assert_allclose(jax.jit(cut.apply)(moved, x), jax.jit(model.apply)(params, x), rtol=1e-5, atol=1e-6)
    layers = jax.eval_shape(cut.activations, {"representation": body}, x)
    assert next(reversed(layers)) == (f"dense{shared}" if shared else "flat")


def test_small_pictures_stand_in_a_black_frame_and_pixels_are_centred():
    framed, large = small("alexnet"), make_model("alexnet", (32, 32, 1), 10, **TINY["alexnet"][2])
    params, x = framed.init(KEY), jax.random.randint(jax.random.key(1), (2, *FASHION), 0, 256).astype(jnp.uint8)
    bigger = jnp.pad(x, [(0, 0), (2, 2), (2, 2), (0, 0)])
    plain, apply = jax.jit(framed.apply)(params, x), jax.jit(large.apply)
    np.testing.assert_allclose(plain, apply(params, bigger), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(plain, apply(params, bigger / 63.75 - 2), rtol=1e-4, atol=1e-5)
    assert not np.allclose(plain, apply(params, bigger / 255), rtol=1e-2)


@pytest.mark.parametrize("split", ["last", "classifier"])
@pytest.mark.parametrize("name", ["vgg11", "dnn"])
def test_dropout_only_with_a_key(name, split):
    """And only at a rate; without a key it is as if there were none."""
    model = small(name, split=split, dropout=0.5)
    none = small(name, split=split, dropout=0.0)
    params, x = model.init(KEY), jax.random.uniform(jax.random.key(1), (4, *TINY[name][0]))
    params = jax.tree.map(lambda leaf: leaf + 0.05, params)  # no unit is dead

    @jax.jit
    def logits(key):
        found = [each.forward(params, x, key=key)[0] for each in (model, none)]
        return [*found, model.apply(params, x)]

    dropped, as_ever, plain = logits(jax.random.key(2))
    np.testing.assert_allclose(as_ever, plain, rtol=1e-5, atol=1e-6)
    assert not np.allclose(dropped, plain, rtol=1e-2)
    assert not np.allclose(dropped, logits(jax.random.key(3))[0], rtol=1e-2)
    np.testing.assert_array_equal(dropped, logits(jax.random.key(2))[0])


def test_rates_are_the_tables():
    """20 % in Tables 4 and 5, 5 % in Table 6 and in the code."""
    rates = {name: model_defaults(name)["dropout"] for name in (*TINY, "dnn_wide")}
    assert rates == {"vgg11": 0.2, "alexnet": 0.2, "alexnet_small": 0.05, "dnn": 0.05, "dnn_wide": 0.05}


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("vgg11", CIFAR, {"split": "middle"}, "split of model vgg11 must be one of last, classifier, got 'middle'"),
        ("dnn", HARBOX, {"split": "clasifier"}, "did you mean 'classifier'"),
        ("vgg11", HARBOX, {}, r"VGG11 needs images of shape \(height, width, colours\), not \(900,\)"),
        ("alexnet", CIFAR, {"width": 0}, "width of model alexnet must be of type int, at least 1, got 0"),
        (
            "alexnet",
            CIFAR,
            {"dropout": 1.0},
            "dropout of model alexnet must be of type float, at least 0 and below 1, got 1.0",
        ),
        (
            "dnn",
            HARBOX,
            {"dropout": -0.1},
            "dropout of model dnn must be of type float, at least 0 and below 1, got -0.1",
        ),
        ("dnn", HARBOX, {"hidden": ()}, r"hidden = \(\) and split = 'last' leave none to share"),
        ("dnn", HARBOX, {"hidden": (8,), "split": "classifier"}, "set at least 2 widths"),
        ("dnn", HARBOX, {"width": 8}, "unknown option"),
    ],
)
def test_what_cannot_be_built_is_refused(name, shape, options, message):
    with pytest.raises(InputError, match=message):
        make_model(name, shape, 10, **options)


# --- the tables as printed ----------------------------------------------------------------------------------------


def broken(stem, **picture):
    """Rows that cannot take what the rows above leave: arrives, takes."""
    steps = layer_tables.follow(presets.published("deprl", stem), **picture)
    return {row: (step.arrives, step.takes) for row, step in steps.items() if step.arrives != step.takes}


def test_slips_within_tables_4_to_6():
    assert broken("tab04_vgg11", side=32, channels=3) == {"fc9.weight": (512, 4096)}
    biases = {"conv2.bias": (192, 64), "conv3.bias": (384, 128), "conv4.bias": (256, 128)}
    biases |= {"fc6.bias": (4096, 512), "fc7.bias": (4096, 512)}
    assert broken("tab05_alexnet", side=32, channels=3) == biases
    fashion = {"conv1.weight": (1, 3), "fc6.weight": (256, 1024)}
    assert broken("tab05_alexnet", side=28, channels=1) == biases | fashion
    assert broken("tab06_dnn", side=1, channels=900) == {}


@pytest.mark.parametrize(
    ("stem", "name", "shape", "classes", "printed", "slips"),
    [
        (
            "tab04_vgg11",
            "vgg11",
            CIFAR,
            10,
            22,
            {*(f"conv{i}.weight" for i in (3, 4, 5, 6)), "conv3.bias", "conv5.bias"}
            | {"fc9.weight", "fc11.weight", "fc11.bias"},
        ),
        (
            "tab05_alexnet",
            "alexnet",
            FASHION,
            10,
            16,
            {"conv1.weight", *(f"{layer}.bias" for layer in ("conv2", "conv3", "conv4", "fc6", "fc7"))},
        ),
        ("tab06_dnn", "dnn", HARBOX, 5, 10, set()),
    ],
)
def test_tables_beside_our_networks(stem, name, shape, classes, printed, slips):
    found = layer_tables.shapes(shapes(name, shape, classes))
    rows = layer_tables.compare_layers(presets.published("deprl", stem), found)
    assert [row["name"] for row in rows] == list(found)
    assert len(rows) == printed
    assert {row["name"] for row in rows if not row["holds"]} == slips
    assert sum(row["ours"] for row in rows) == count_params(shapes(name, shape, classes))


def test_outputs_of_tables_3_and_4_are_swapped():
    """ResNet-18 is for CIFAR-100 and VGG-11 for CIFAR-10."""
    outputs = {}
    for stem, row in (("tab03_resnet18", "fc6.bias/shape"), ("tab04_vgg11", "fc11.bias/shape")):
        (outputs[stem],) = [entry["value"] for entry in presets.published("deprl", stem) if entry["name"] == row]
    assert outputs == {"tab03_resnet18": [10], "tab04_vgg11": [100]}


def test_bars_of_layers_and_parts():
    fig, (ax, parts) = plt.subplots(1, 2)
    plots.layer_bars(ax, {"conv1": 10, "conv2": 200, "norm": 8}, {"conv1": 10, "conv2": 100}, table="Table 4")
    ax.legend()
    assert [line.get_label() for line in ax.lines] == ["Table 4", "Table 4, another number"]
    assert [text.get_text() for text in ax.texts] == ["10", "200", "100", "8"]
    assert unlabelled(fig) == []
    assert ax.yaxis_inverted()
    plots.part_bars(parts, {"last": {"representation": 3_000_000, "head": 1_000_000}})
    assert [bar.get_width() for bar in parts.patches] == [3.0, 1.0]
    plt.close(fig)
