"""Memory: what a run takes is known from shapes, and what cannot fit is refused before it starts."""

import jax
import pytest

from fedlab_lite.algorithms import ALGORITHMS, Ditto
from fedlab_lite.data import federated
from fedlab_lite.engine import Problem
from fedlab_lite.nn import make_model
from fedlab_lite.runs import Settings, memory, run
from fedlab_lite.util import InputError, files

SMALL = {"dataset": "digits", "partition": "iid", "num_clients": 4, "train_size": 80, "num_rounds": 1}


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_the_bytes_are_those_of_a_real_state(algorithm):
    data = federated("digits", partition="iid", num_clients=4, train_size=80)
    problem = Problem(data, make_model("mlp", data.input_shape, 10, width=8))
    found = ALGORITHMS[algorithm]()
    leaves = jax.tree.leaves(found.init(problem, jax.random.key(0)))
    state = sum(8 if jax.dtypes.issubdtype(each.dtype, jax.dtypes.extended) else each.nbytes for each in leaves)
    rows = memory.needed(problem, found) - 2 * state
    assert data.x.nbytes <= rows < 2 * data.x.nbytes
    assert memory.needed(problem, found, 3) == 6 * state + rows


def test_what_cannot_fit_is_refused_before_it_starts():
    wide = Settings(**SMALL, algorithm="ditto", model_options={"width": 10**8})  # 0.3 TB per client
    with pytest.raises(InputError, match=r"takes at least [\d,.]+ GB of memory, and [\d,.]+ GB are free"):
        run(wide)
    assert not list(files.runs_dir().glob("*.ckpt"))


def test_what_is_large_is_said(monkeypatch, capsys):
    data = federated("digits", partition="iid", num_clients=4, train_size=80)
    problem = Problem(data, make_model("mlp", data.input_shape, 10, width=8))
    monkeypatch.setattr(memory, "LARGE", 1e3)
    monkeypatch.setattr(memory, "silent", lambda: False)
    memory.check("Ditto", problem, Ditto(), 1)
    assert "Ditto takes at least 0.0 GB" in capsys.readouterr().err
