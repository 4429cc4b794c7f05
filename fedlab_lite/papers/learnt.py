"""Whether a run has learnt something: a verdict on one that has not would say nothing of its method."""

import math
from collections.abc import Collection, Mapping

from fedlab_lite.engine import History
from fedlab_lite.papers import errors, statistics
from fedlab_lite.papers.names import plain_key

CLEARLY = 0.02  # share above the majority baseline; a number of standard errors is also required
LEARNT_ERRORS = 3  # standard errors above the majority baseline


def trained(histories: Mapping[str, History], unlearnt: Collection[str] = ()) -> list[str]:
    """Reasons why these runs cannot be compared, one sentence each; empty if every run learnt something.

    Args:
      unlearnt: names of runs that need not have learnt anything.
    """
    found = []
    for key, run in histories.items():
        name = plain_key(key)
        if run.num_rounds < 1 or not run.seeds:
            found.append(f"{name} was not trained ({run.num_rounds} rounds, {len(run.seeds)} seeds)")
        elif any(run.diverged) or not statistics.finite(run.values(run.headline)):
            found.append(f"{name} diverged")
        elif errors.is_share(run.headline) and not math.isfinite(run.constant):
            found.append(f"{name} has no majority baseline to be held against")
        elif not statistics.finite(run.final(run.headline)):
            found.append(f"{name} was not evaluated in its last rounds")
        elif key not in unlearnt:
            found += _learnt(name, run)
    return found


def _learnt(name: str, run: History) -> list[str]:
    """A reason if a run is not clearly above the majority baseline (if unknown: above its start), else none.

    A personal model must be above that of its own client, which always predicts the client's commonest class.
    """
    headline, values = run.headline, run.final(run.headline)
    share, sign = errors.is_share(headline), 1 if statistics.better_higher(headline) else -1
    spread = errors.mean_error(run.client_accuracy.mean(0) if len(values) < 2 else values)
    known, personal = math.isfinite(run.constant), run.own_constant > run.constant + 1e-6
    least = run.own_constant if personal else run.constant if known else float(run.metrics[headline][:, 0].mean())
    need = max(CLEARLY * (1 if share else abs(least)), LEARNT_ERRORS * (spread if math.isfinite(spread) else 0))
    if sign * (values.mean() - least) > need:
        return []
    says = f"{100 * values.mean():.1f} % against {100 * least:.1f} %" if share else f"{values.mean():.4g}, {least:.4g}"
    baseline = "its clients' own majority baselines" if personal else "the majority baseline"
    beyond = f"{'above' if sign > 0 else 'below'} {baseline if known else 'where it started'}"
    return [f"{name} is not clearly {beyond} ({says})"]
