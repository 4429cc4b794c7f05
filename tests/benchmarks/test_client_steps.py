"""Client steps per second: a round of ours, the bare steps that bound it, and the peers'. Run by `make bench`."""

from collections.abc import Callable
from dataclasses import replace

import client_steps
import pytest

OURS = {"fedlab_lite, a round": "client_steps:fedlab_round", "bare JAX step": "client_steps:bare_step"}
PLAIN = {"bare JAX step, Flax's layers": "client_steps:plain_bare_step"}
TORCH = {"bare PyTorch step": "peers_torch:torch_steps"}
PFL = {"pfl-research, a round": "peers_pfl:pfl_round"}
DRJAX = {"DrJAX, a round": "peers_jax:drjax_round"}
SLOW = {"DrJAX, a round, Flax's layers": "peers_jax:plain_drjax_round"}
CONTESTS = {  # an MLP's layers are Flax's own
    "cnn": OURS | PLAIN | TORCH | PFL | DRJAX | SLOW,
    "mlp": OURS | TORCH | PFL | DRJAX,
    "small_resnet": OURS | PLAIN | TORCH,
}
ROUNDS = 7


@pytest.mark.filterwarnings("ignore")  # a peer's deprecations are its own
@pytest.mark.parametrize(
    ("workload", "who", "name"),
    [
        pytest.param(workload, who, name, id=f"{workload.model}-{who}")
        for workload in client_steps.WORKLOADS
        for who, name in CONTESTS[workload.model].items()
    ],
)
def test_client_steps(
    contestant: Callable, measure: Callable, workload: client_steps.Workload, who: str, name: str
) -> None:
    measured, rounds = workload, ROUNDS
    if who in SLOW:  # one step per client, once: a second or two each
        measured, rounds = replace(workload, rows=workload.batch_size), 1
    measure(
        contestant(name)(measured),
        client_steps.fedlab_round(workload),
        group=workload.title,
        who=who,
        rounds=rounds,
        steps=measured.steps,
        our_steps=workload.steps,
    )
