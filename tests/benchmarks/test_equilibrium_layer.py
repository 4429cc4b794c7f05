"""Milliseconds of an equilibrium layer, forwards and backwards: ours, the limit, the peers'. Run by `make bench`."""

from collections.abc import Callable

import equilibrium_layer
import numpy as np
import pytest
from equilibrium_layer import WORKLOADS, Workload

LIMIT = "limit: its evaluations alone"
OURS = {
    "fedlab_lite, Anderson": "equilibrium_layer:fedlab",
    LIMIT: "equilibrium_layer:evaluations_alone",
    "fedlab_lite, plain iteration": "equilibrium_layer:fedlab_plain",
}
TORCHDEQ = {"torchdeq, Anderson": "peers_torch:torchdeq_layer"}
BANAX = {"banax, Anderson": "peers_banax:banax_layer"}
CONTESTS = {
    "implicit": OURS | TORCHDEQ | BANAX | {"jaxopt, Anderson": "peers_jax:jaxopt_layer"},
    "one_step": OURS
    | TORCHDEQ
    | BANAX
    | {
        "anchorax, Anderson": "peers_equinox:anchorax_layer",
        "optimistix, plain iteration": "peers_jax:optimistix_layer",
    },
    "shine": {
        "fedlab_lite, Broyden": "equilibrium_layer:fedlab",
        "banax, Broyden": "peers_banax:banax_layer",
        "anchorax, Broyden": "peers_equinox:anchorax_layer",
    },
    "reversible": {"fedlab_lite": "equilibrium_layer:fedlab", "banax": "peers_banax:banax_layer"},
}
ROUNDS = 25


@pytest.mark.filterwarnings("ignore")  # a peer's deprecations are its own
@pytest.mark.parametrize(
    ("workload", "who", "name"),
    [
        pytest.param(workload, who, name, id=f"{workload.kind}-{workload.radius}-{workload.gradient}-{who}")
        for workload in WORKLOADS
        for who, name in CONTESTS[workload.gradient].items()
    ],
)
def test_equilibrium_layer(contestant: Callable, measure: Callable, workload: Workload, who: str, name: str) -> None:
    run = contestant(name)(workload)
    result = run()
    note = f"{int(result.iterations)} iterations"
    if who != LIMIT:  # the same work is the same gradient
        exact = workload.gradients
        errors = [
            np.linalg.norm(np.asarray(g) - e) / np.linalg.norm(e) for g, e in zip(result.gradients, exact, strict=True)
        ]
        most = {"shine": np.inf, "reversible": 5e-2}.get(workload.gradient, 1e-2)  # few steps end earlier
        assert max(errors) < most
        note += f", gradient to {max(errors):.0e}"
    plain = "plain iteration" in who and not who.startswith("fedlab_lite")  # a peer's method is timed against the same
    ours = (equilibrium_layer.fedlab_plain if plain else equilibrium_layer.fedlab)(workload)
    note += ", over our plain iteration" if plain else ""
    measure(run, ours, group=workload.title, who=who, rounds=ROUNDS, note=note)
