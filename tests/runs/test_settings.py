"""Settings: one spelling each, through JSON and back, and what cannot be is refused with near names."""

import copy
import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlab_lite.runs import Settings, run
from fedlab_lite.util import InputError

pytestmark = pytest.mark.usefixtures("small_problem")


@given(
    lr=st.floats(1e-4, 1) | st.integers(1, 3),
    seeds=st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
    rounds=st.integers(0, 1000),
)
def test_settings_survive_json(lr, seeds, rounds):
    settings = Settings(algorithm_options={"lr": lr}, seeds=seeds, num_rounds=rounds)
    again = Settings(**json.loads(json.dumps(settings.to_dict())))
    assert again == settings
    assert again.canonical() == settings.canonical()
    assert hash(again) == hash(settings)


def test_equal_settings_have_one_spelling():
    a = Settings(algorithm_options={"lr": 1, "batch_size": 2}, alpha=1)
    b = Settings(algorithm_options=(("batch_size", 2), ("lr", 1.0)), alpha=1.0)
    assert a == b
    assert a.canonical() == b.canonical()
    assert Settings(num_edges=7, edge_probability=0.5) == Settings()  # of a graph that there is not


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_round": 3}, "unknown setting 'num_round'; did you mean 'num_rounds'"),
        ({"num_rounds": 2.5}, "num_rounds must be of type int, at least 0, got 2.5"),
        ({"num_rounds": True}, "num_rounds must be of type int"),
        ({"num_rounds": -1}, "num_rounds must be of type int, at least 0, got -1"),
        ({"seeds": 3}, "seeds must be of type"),
        ({"seeds": []}, "seeds must be of type .*, not empty, each 0 to 2.31 - 1"),
        ({"seeds": [1, 1]}, "different"),
        (
            {"graph": "ring"},
            "graph is 'ring', but fedavg has a server and uses no graph; .*: local, dec_fedavg, .*deprl",
        ),
        ({"alpha": 0.0}, "alpha must be of type float, above 0, got 0.0"),
        (
            {"num_clients": 3, "unseen_clients": 3},
            "unseen_clients is 3 of 3 clients; at least one client must train",
        ),
        (
            {"num_clients": 3, "unseen_clients": 1, "cohort_size": 3},
            "cohort_size is 3, but 2 clients train; lower it, or use None",
        ),
        ({"num_clients": 3, "cohort_size": 4}, "cohort_size is 4, but 3 clients train; lower it, or use None"),
        (
            {"num_clients": 3, "budgets": [3, 10]},
            "one number of solver iterations, 1 or more, for each of the 3 clients",
        ),
        ({"validation_size": 1.0}, "validation_size must be of type float, at least 0 and below 1, got 1.0"),
        ({"message_noise": 1.0}, "set message_clip as well"),
        ({"message_clip": 0.0}, r"message_clip must be of type float \| None, above 0, got 0.0"),
        ({"seeds": [2**31]}, "each 0 to 2.31 - 1"),
        ({"num_clients": 2, "budgets": [0, 10]}, r"budgets must be of type .*, each at least 1, got \[0, 10\]"),
        ({"fusion": "iteration"}, "fusion must be one of own, .*, got 'iteration'; did you mean 'iterations'"),
        ({"partition": "dirichle"}, "partition must be one of iid, .*, got 'dirichle'; did you mean 'dirichlet'"),
        ({"graph": "rign"}, "graph must be one of ring, star, random, complete, '', got 'rign'; did you mean 'ring'"),
        ({"graph_seed": -1}, "graph_seed must be of type int, 0 to 2.31 - 1, got -1"),
        ({"seeds": [0, -1]}, r"seeds must .*, not empty, each 0 to 2.31 - 1, got \[0, -1\]"),
        ({"common_test": 1}, r"common_test must be of type bool, True or False, got 1 \(int\)"),
        ({"eval_every": 0}, "eval_every must be of type int, at least 1, got 0"),
        ({"algorithm": "fedavgg"}, "unknown algorithm 'fedavgg'; did you mean 'fedavg'"),
        ({"model": "mpl"}, "unknown model 'mpl'; did you mean 'mlp'"),
        ({"model": 3}, "model must be of type str"),
        ({"algorithm_options": {"rh": 1.0}, "algorithm": "fedeq"}, "did you mean 'rho'"),
        ({"algorithm_options": None}, "algorithm_options must be a dictionary, or pairs"),
        ({"model_options": 5}, "model_options must be a dictionary, or pairs"),
        ({"model_options": "ab"}, "model_options must be a dictionary, or pairs"),
        ({"algorithm_options": [("lr", 0.1, 3)]}, "algorithm_options must be a dictionary, or pairs"),
        ({"algorithm_options": {"lr": "fast"}}, "lr of algorithm fedavg must be of type float"),
        ({"algorithm_options": {"batch_size": 0}}, "batch_size"),
        ({"model_options": {"width": "wide"}}, "width of model mlp must be of type int"),
        ({"model_options": {"width": -1}}, "width of model mlp must be of type int, at least 1, got -1"),
        ({"model_options": {"width": 2.5}}, "width of model mlp must be of type int, at least 1, got 2.5"),
        ({"model_options": {"width": True}}, "width of model mlp must be of type int, at least 1, got True"),
        ({"model_options": {"widht": 8}}, "unknown option of model mlp 'widht'; did you mean 'width'"),
        ({"model": "cnn", "model_options": {"channels": [4, -4]}}, r"channels of model cnn .*each at least 1"),
        ({"model_options": {"kappa": 0.5}}, "unknown option of model mlp 'kappa'"),
    ],
)
def test_bad_settings(values, message):
    with pytest.raises(InputError, match=message):
        Settings(**values)


@pytest.mark.parametrize(("name", "near"), [("rounds", "num_rounds"), ("num_client", "num_clients"), ("seed", "seeds")])
def test_a_name_that_is_no_setting(name, near):
    with pytest.raises(InputError, match=f"unknown setting '{name}'; did you mean .*'{near}'"):
        Settings(**{name: 3})
    settings = Settings("digits", num_rounds=3)
    assert replace(settings, num_rounds=3) == copy.deepcopy(settings) == pickle.loads(pickle.dumps(settings))


def test_what_is_no_settings():
    with pytest.raises(InputError, match=r"is no Settings; write Settings\(...\), or Settings\(\*\*values\)"):
        run({"num_rounds": 3})
    with pytest.raises(InputError, match=r"lr is an option of the algorithm; write algorithm_options=\{'lr': ...\}"):
        Settings(lr=0.1)
    with pytest.raises(InputError, match=r"width is an option of the model; write model_options=\{'width': ...\}"):
        Settings(width=8)
