"""Equal methods rarely get a word, and real leads get it as often as the statistics allow: by simulation."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import made

from fedlab_lite.papers import errors
from fedlab_lite.papers.outcome import OUTCOMES
from fedlab_lite.papers.verdicts import compare, kindest, observed, together


def simulated(rivals, lead, draws, *, seeds=3, clients=20):
    """Outcomes of `draws` claims that a method leads `rivals` others; runs and clients vary by 1 and 5 points."""
    rng = np.random.default_rng([rivals, seeds])
    counts = dict.fromkeys(OUTCOMES, 0)
    for _ in range(draws):
        runs = {}
        hard = rng.normal(0, 0.1, clients)  # of the partition: the same for all methods
        for method in range(rivals + 1):
            own = rng.normal(0, 0.05, clients)  # how well a method suits a client; of the partition, not of the seed
            finals = 0.7 + own.mean() + (lead if method == 0 else 0) + rng.normal(0, 0.01, seeds)
            run = made(finals, clients=clients, rounds=4)
            curves = np.broadcast_to(finals[:, None, None] - own.mean() + own + hard, (seeds, 5, clients))
            runs[str(method)] = replace(run, client_curves=curves)
        counts[compare(runs, "0", [str(method) for method in range(1, rivals + 1)]).outcome] += 1
    return {name: count / draws for name, count in counts.items()}


@pytest.mark.slow
@pytest.mark.parametrize("rivals", [1, 3, 5, 7])
def test_equal_methods_get_either_word_in_at_most_five_percent(rivals):
    """Both words together, whatever the number of rivals; 400 draws have a standard error of a point."""
    found = simulated(rivals, 0.0, 400)
    assert found["agrees"] + found["differs"] <= 0.065, found


@pytest.mark.slow
@pytest.mark.parametrize(("readings", "parts"), [(8, 1), (4, 3)])
def test_more_readings_do_not_make_a_word_more_likely(readings, parts):
    """The kindest of independent readings, each of `parts` numbers around 0; without a correction, 20 % of 8 agree."""
    rng, words, draws = np.random.default_rng(readings), [], 250
    for _ in range(draws):
        tried = {
            str(name): together(*(observed("number", rng.normal(size=3)) for _ in range(parts)))
            for name in range(readings)
        }
        words.append(kindest(tried).outcome)
    assert 1 - words.count("undecided") / draws <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize("rows", [0.3, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("level", [0.05, 0.05 / 6])
def test_a_second_error_does_not_make_chance_look_rare(rows, level):
    """Three seeds of standard error 1, and rows of a known one: with Welch's degrees of freedom, 0.5 gives 7 %."""
    rng = np.random.default_rng(int(10 * rows))
    seeds = rng.normal(0, math.sqrt(3), (4000, 3))
    ratios, errors_of = seeds.mean(1) + rng.normal(0, rows, 4000), seeds.std(1, ddof=1) / math.sqrt(3)
    bars = [
        math.hypot(error, rows) * errors.quantile(level / 2, [(error, 2.0), (rows, math.inf)]) for error in errors_of
    ]
    assert np.mean(np.abs(ratios) > bars) <= level + 3 * math.sqrt(level * (1 - level) / 4000)


@pytest.mark.parametrize("parts", [[(1.0, 2.0)], [(1.0, 2.0), (0.3, math.inf)], [(0.0, 2.0), (1.0, 29.0)]])
def test_a_chance_is_the_inverse_of_its_quantile(parts):
    for p in (0.5, 0.05, 0.001):
        assert errors.chance(errors.quantile(p / 2, parts), parts) == pytest.approx(p)
    assert errors.chance(0.0, parts) == 1.0
    assert errors.chance(1e40, parts) == 0.0


@pytest.mark.slow
def test_the_power_of_three_seeds():
    """A lead that is 1 and 2 standard deviations of a difference (of seeds and clients' draw) against three rivals."""
    deviation = math.sqrt(2) * math.hypot(0.01, 0.05 / math.sqrt(20) * math.sqrt(3))
    one, two = (simulated(3, factor * deviation, 200)["agrees"] for factor in (1, 2))
    assert one < two
    assert two > 0.3
