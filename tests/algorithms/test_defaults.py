"""Defaults of hyper-parameters are the numbers that the papers print, so that a run without options is the paper's."""

import pytest

from fedlab_lite.algorithms import make_algorithm

# FeDEQ, Sec. V-A4: "5 local epochs for training shared representation and 3 for personalization for all methods"
FEDEQ_EPOCHS = ("fedavg", "fedavg_ft", "fedbabu", "fedeq", "fedper", "fedrep", "fedrod", "fedpac", "ditto", "knn_per")
PERSONAL = {"fedeq": "head_epochs", "fedrep": "head_epochs", "ditto": "personal_epochs"}
PRINTED = [
    *((name, "epochs", 5) for name in (*FEDEQ_EPOCHS, "local")),
    *((name, option, 3) for name, option in PERSONAL.items()),
    ("fedeq", "join_epochs", 3),  # of new clients, Sec. V-B5
    ("fedeq", "rho", 0.01),  # Sec. V-B1: "rho = 0.01 provides the best balance for our datasets"
    ("fedf_admm", "nu", 0.01),  # Table II
    ("fedreco", "epochs", 1),  # Sec. 5: "1 epoch on training local prediction head, 1 epoch on training local feature
    ("fedreco", "head_epochs", 1),  # extractor"
    ("deprl", "head_lr", 0.005),  # appendix: alpha and beta "are initialized as 0.005 and 0.01"
    ("deprl", "lr", 0.01),
    ("deprl", "head_epochs", 2),  # "The number of local update steps is tau = 2"
]


@pytest.mark.parametrize(("name", "option", "printed"), PRINTED)
def test_a_default_is_what_its_paper_prints(name, option, printed):
    assert getattr(make_algorithm(name), option) == printed


@pytest.mark.parametrize("name", ["fedavg_ft", "fedbabu"])
def test_fine_tuning_takes_as_many_epochs_as_training(name):
    algorithm = make_algorithm(name)
    assert algorithm.ft_epochs == algorithm.epochs


def test_rivals_in_function_space_distil_alike():
    cmfd, fedf = make_algorithm("cmfd"), make_algorithm("fedf_admm")
    for option in ("rho", "distill_epochs", "distill_batch_size", "epochs"):
        assert getattr(cmfd, option) == getattr(fedf, option)
