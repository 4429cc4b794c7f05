"""FedF-ADMM's counted tables: layers of Table III, bytes of Sec. IV-B, divergences of Fig. 11."""

import json
from math import log

import jax
import numpy as np
import pytest

from fedlab_lite.algorithms import make_algorithm
from fedlab_lite.data import Federated, by_label, dirichlet, federated, iid
from fedlab_lite.engine import Problem, make_graph, message_bytes
from fedlab_lite.nn import count_params, make_model
from fedlab_lite.papers import notebooks
from fedlab_lite.util import files

SHAPES = {"fashion_mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
TABLE_III = {  # as printed
    "fashion_mnist": [832, 64, 51264, 128, 1606144, 5130],
    "cifar10": [2432, 64, 51264, 128, 2097664, 5130],
}
PRINTED_TOTAL = {"fashion_mnist": 1663432, "cifar10": 2156682}


def params(dataset):
    return jax.eval_shape(make_model("norm_cnn", SHAPES[dataset], 10).init, jax.random.key(0))


def layers(tree):
    body = tree["representation"]
    return [body["convs"]["0"], body["norms"]["0"], body["convs"]["1"], body["norms"]["1"], body["dense"], tree["head"]]


@pytest.mark.parametrize("dataset", SHAPES)
@pytest.mark.parametrize("row", range(6), ids=["conv1", "norm1", "conv2", "norm2", "dense1", "dense2"])
def test_every_row_of_table_iii(dataset, row):
    assert count_params(layers(params(dataset))[row]) == TABLE_III[dataset][row]


@pytest.mark.parametrize(("dataset", "slip"), [("fashion_mnist", 130), ("cifar10", 0)])
def test_totals_are_the_sums_of_the_rows(dataset, slip):
    total = count_params(params(dataset))
    assert total == sum(TABLE_III[dataset]) == PRINTED_TOTAL[dataset] + slip


def test_a_stride_makes_the_dense_layer_smaller_on_any_size():
    for side, places in ((32, 4), (30, 4), (28, 1)):  # 30: 8 places, 4 and 2 after pools
        model = make_model("norm_cnn", (side, side, 3), 10, stride=4)
        like = jax.eval_shape(model.init, jax.random.key(0))
        assert count_params(like["representation"]["dense"]) == (places * 64 + 1) * 512
        assert jax.eval_shape(model.apply, like, np.zeros((1, side, side, 3), np.uint8)).shape == (1, 10)


def test_centred_pixels_are_shifted_pixels_and_tell_images_apart():
    x = np.random.default_rng(0).uniform(0.4, 0.6, (8, 28, 28, 1)).astype(np.float32)
    options = {"channels": (8, 8), "features": 32}
    plain, centred = (make_model("norm_cnn", (28, 28, 1), 10, centre=c, **options) for c in (0.0, 0.5))
    params = plain.init(jax.random.key(0))
    np.testing.assert_array_equal(centred.represent(params, x), plain.represent(params, x - np.float32(0.5)))
    alike, apart = (np.asarray(model.represent(params, x)) for model in (plain, centred))
    spread = [z.var(0).sum() / np.square(z.mean(0)).sum() for z in (alike, apart)]  # of features, to their mean
    assert spread[1] > 3 * spread[0]


@pytest.mark.parametrize(
    ("dataset", "shared", "params_bytes", "outputs_bytes"),
    [("fashion_mnist", 1000, 6654248, 40000), ("cifar10", 5000, 8626728, 200000)],  # 6.7 and 8.6 MB, 40 and 200 KB
)
@pytest.mark.parametrize("algorithm", ["cmfd", "fedf_admm"])
def test_bytes_of_a_link(dataset, shared, params_bytes, outputs_bytes, algorithm):
    row = (np.zeros((1, *SHAPES[dataset]), np.uint8), np.zeros(1, np.int32))
    shared_x = np.zeros((shared, *SHAPES[dataset]), np.uint8)
    data = Federated.stack([row] * 10, [row] * 10, name=dataset, source="zeros", num_classes=10, shared_x=shared_x)
    problem = Problem(data, make_model("norm_cnn", SHAPES[dataset], 10), graph=make_graph("ring", 10))
    for share, expected in (("params", params_bytes), ("outputs", outputs_bytes)):
        sent = message_bytes(problem, make_algorithm(algorithm, share=share))
        assert sent == {"up": expected, "down": expected}
    assert message_bytes(problem, make_algorithm("dec_fedavg"))["up"] == params_bytes


@pytest.fixture(scope="module")
def kl_from_uniform():
    """Figure 11's measure, from the cell of the notebook that defines it."""
    file = files.notebooks_dir() / "fedf_admm" / "fig11_dirichlet_kl.ipynb"
    cells = [notebooks.source(cell) for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    (cell,) = [cell for cell in cells if "def kl_from_uniform" in cell]
    names = {"np": np}
    exec(cell, names)
    return names["kl_from_uniform"]


@pytest.mark.parametrize("classes", [1, 2, 5, 10])
def test_divergence_of_equal_classes(kl_from_uniform, classes):
    y = np.repeat(np.arange(classes), 30)
    assert kl_from_uniform(y, 10) == pytest.approx(log(10 / classes), abs=1e-12)


def test_divergence_by_hand(kl_from_uniform):
    """Shares 3/4 and 1/4 of two classes: log 2 - H = (3/4) log(3/2) + (1/4) log(1/2)."""
    assert kl_from_uniform(np.array([0, 0, 1, 0]), 2) == pytest.approx(0.75 * log(1.5) + 0.25 * log(0.5))


def test_one_class_is_the_furthest(kl_from_uniform):
    y = np.repeat(np.arange(10), 1000)

    def mean(parts):
        return np.mean([kl_from_uniform(y[rows], 10) for rows in parts[0]])

    one, two = (mean(by_label(y, y, 10, classes, seed=0)) for classes in (1, 2))
    assert (one, two) == pytest.approx((log(10), log(5)), abs=1e-12)
    others = [mean(dirichlet(y, y, 10, 0.1, seed=seed)) for seed in range(20)]
    assert max(others) < two < one
    assert mean(iid(y, y, 10, seed=0)) == pytest.approx(9 / 2000 * 0.9, rel=0.5)  # (K-1)/2n, without replacement


def test_the_bubbles_are_what_a_run_trains_on():
    """Equal numbers of each class are divided by the same draws, so made-up labels give a run's partition."""
    y = np.repeat(np.arange(10), 100)
    counts = [np.bincount(y[rows], minlength=10) for rows in dirichlet(y, y, 10, 0.1, seed=3)[0]]
    options = {"partition": "dirichlet", "num_clients": 10, "alpha": 0.1, "train_size": 1000, "test_size": 1000}
    data = federated("textures", **options, seed=3)
    given = [np.bincount(y[:n], minlength=10) for y, n in zip(data.y, data.size, strict=True)]
    np.testing.assert_array_equal(given, counts)
