"""Numbers of parameters: of the papers' tables, of the literature, and ratios that a paper prints."""

import jax
import pytest

from fedlab_lite.nn import count_params, make_model

FEMNIST, CIFAR, TEXT = (28, 28, 1), (32, 32, 3), (16,)

# FeDEQ, Tables II, V and VI: shared parameters, and the total in MB (4 bytes per parameter, 10^6 bytes per MB).
# Table V's CIFAR-10 ResNet-14 and -20 print 11.34 and 17.54: sums of two rounded columns; the totals are below.
PUBLISHED = [
    ("resnet14", FEMNIST, 62, 1_694_176, 6.81),
    ("resnet20", FEMNIST, 62, 2_967_392, 11.90),
    ("resnet34", FEMNIST, 62, 5_126_880, 20.54),
    ("deq_resnet_s", FEMNIST, 62, 984_896, 3.97),
    ("resnet14", CIFAR, 10, 2_832_320, 11.33),
    ("resnet20", CIFAR, 10, 4_382_400, 17.53),
    ("resnet34", CIFAR, 10, 7_777_984, 31.12),
    ("deq_resnet_m", CIFAR, 10, 2_725_120, 10.91),
    ("resnet14", CIFAR, 100, 3_939_008, 15.81),
    ("resnet20", CIFAR, 100, 5_489_088, 22.01),
    ("resnet34", CIFAR, 100, 10_876_608, 43.56),
    ("deq_resnet_m", CIFAR, 100, 2_725_120, 10.95),
    ("transformer8", TEXT, 90, 356_672, 1.65),  # Table II; Table VI prints the size of one layer more
    ("transformer12", TEXT, 90, 556_608, 2.45),
    ("deq_transformer", TEXT, 90, 206_848, 1.05),
    ("transformer4", TEXT, 90, 156_736, 0.85),  # ours: Table VI's 1.05 has one layer more
]
HEADS = {62: 7_998, 10: 1_290, 100: 12_900, 90: 55_962}


def shapes(model):
    return jax.eval_shape(model.init, jax.random.key(0))


@pytest.mark.parametrize(("name", "shape", "classes", "shared", "megabytes"), PUBLISHED)
def test_counts_of_tables_2_5_and_6(name, shape, classes, shared, megabytes):
    params = shapes(make_model(name, shape, classes))
    assert count_params(params["representation"]) == shared
    assert count_params(params["head"]) == HEADS[classes]
    assert round(count_params(params) * 4 / 1e6, 2) == megabytes


def test_ratios_of_fl_deq():
    """FL-DEQ prints ratios and no counts: more than 84 %, 56 % and more than 66.5 % fewer parameters (Sec. IV-B)."""

    def count(name, **options):
        return count_params(shapes(make_model(name, CIFAR, 10, **options)))

    resnet, cnn = count("fl_resnet"), count("fl_cnn", layers=10)
    assert (resnet, cnn) == (286_114, 257_218)
    saved = [100 * (1 - count("fl_deq_resnet", layers=blocks) / resnet) for blocks in (1, 2, 3)]
    assert saved[0] >= 84
    assert round(saved[2]) == 56
    assert 100 * (1 - count("fl_deq_cnn", layers=4) / cnn) >= 66.5
    # one more convolution is 9 C^2 weights and a normalisation, and of a CNN's L the input convolution is the first
    assert count("fl_cnn", layers=5) - count("fl_cnn", layers=4) == 9 * 56**2 + 2 * 56
    assert count("fl_cnn", layers=1) == 27 * 56 + 2 * 56 + 570
    assert count("fl_deq_cnn", layers=2) - count("fl_deq_cnn", layers=1) == 9 * 48**2 + 2 * 48


def test_counts_of_figure_4():
    assert count_params(shapes(make_model("mlp", FEMNIST, 62))) == 1_263_550
    assert count_params(shapes(make_model("deq_mlp", FEMNIST, 62))) == 737_214


def test_counts_of_the_literature():
    assert count_params(shapes(make_model("cnn", FEMNIST, 10))) == 1_663_370  # McMahan et al. 2017
    assert count_params(shapes(make_model("mlp", FEMNIST, 10, width=200, depth=2, features=0))) == 199_210


@pytest.mark.parametrize(
    ("shape", "shared", "first"), [(FEMNIST, 1_248_548, (5, 5, 1, 4)), (CIFAR, 2_796_352, (5, 5, 3, 64))]
)
def test_counts_of_fedreco(shape, shared, first):
    """Its |u|: what a client sends in a round is 4 bytes per parameter, 4.99 and 11.19 MB."""
    params = shapes(make_model("cnn5", shape, 10))
    assert count_params(params["representation"]) == shared
    assert count_params(params["head"]) == 10_250
    assert params["representation"]["convs"]["0"]["kernel"].shape == first
    assert sorted(params["representation"]) == ["convs", "dense", "hidden"]
    assert sorted(shapes(make_model("cnn", shape, 10))["representation"]) == ["convs", "dense"]  # as it was


def test_counts_of_resnet18():
    """He et al. 2016, Table 1: 11,689,512 parameters for 1000 classes; with a 3x3 stem 11,173,962 for ten."""

    def count(classes, **options):
        return count_params(shapes(make_model("resnet18", CIFAR, classes, **options)))

    assert count(10) == 11_173_962
    assert count(1000, stem="imagenet") == 11_689_512
    assert count(10, stem="imagenet") == 11_181_642
    assert count(10, width=8) < 200_000
    assert make_model("resnet18", CIFAR, 10, stem="imagenet", width=8).num_classes == 10
