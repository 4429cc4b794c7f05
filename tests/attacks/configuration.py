"""Section C: JAX' configuration and the number of devices: one name, one number, or one clear line."""

import json
import math
import random
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax

from attacks.cases import SILENT, Outcome, ends, judged, process, side_by_side, units
from fedlab_lite.runs import Settings, run

BASE = {"dataset": "digits", "partition": "dirichlet", "num_clients": 5, "train_size": 100, "test_size": 50}
RUNS = {  # networks and algorithms of other kinds, as users have them: compiled with all optimisations
    "mlp": {"model_options": {"width": 16, "depth": 1, "features": 8}, "cohort_size": 3},
    "cnn": {"model": "cnn5", "model_options": {"features": 16}, "algorithm": "fedper"},
    "deq": {"model": "deq_mlp", "model_options": {"width": 16, "features": 8}, "algorithm": "fedeq"},
}
SCRIPT = """
import hashlib, json, sys
import fedlab_lite as fl
from fedlab_lite.runs import Settings, run, run_names
from fedlab_lite.util import FedlabError
fl.setup()
change = json.loads(sys.argv[3])
import jax
for name, value in change.items():  # after setup()
    jax.config.update(name, value)
try:
    for name, options in json.loads(sys.argv[1]).items():
        history = run(fl.Settings(**json.loads(sys.argv[2]), **options, num_rounds=2))
        numbers = {key: [float(each) for each in values.ravel()] for key, values in history.metrics.items()}
        print("found", json.dumps([name, run_names(history), numbers]))
except FedlabError as error:
    sys.exit(f"refused: {error}")
"""
ENVIRONMENTS = {  # variables, each with the numbers that must come of it: the same, or a refusal
    "as it is": {},
    **{f"JAX_NUM_CPU_DEVICES={n}": {"JAX_NUM_CPU_DEVICES": str(n)} for n in (1, 2, 3, 8)},
    "NPROC=2": {"NPROC": "2"},
    "JAX_ENABLE_X64=1": {"JAX_ENABLE_X64": "1"},
    "JAX_THREEFRY_PARTITIONABLE=0": {"JAX_THREEFRY_PARTITIONABLE": "0"},
    "JAX_RANDOM_SEED_OFFSET=5": {"JAX_RANDOM_SEED_OFFSET": "5"},
    "JAX_DEFAULT_PRNG_IMPL=rbg": {"JAX_DEFAULT_PRNG_IMPL": "rbg"},
    "JAX_NUMPY_DTYPE_PROMOTION=strict": {"JAX_NUMPY_DTYPE_PROMOTION": "strict"},
    "JAX_NUMPY_RANK_PROMOTION=raise": {"JAX_NUMPY_RANK_PROMOTION": "raise"},
    "JAX_TRANSFER_GUARD=disallow": {"JAX_TRANSFER_GUARD": "disallow"},
    "JAX_DEFAULT_MATMUL_PRECISION=bfloat16": {"JAX_DEFAULT_MATMUL_PRECISION": "bfloat16"},
    "JAX_DEFAULT_DTYPE_BITS=64": {"JAX_DEFAULT_DTYPE_BITS": "64"},
    "JAX_DEBUG_NANS=1": {"JAX_DEBUG_NANS": "1"},
    "JAX_DISABLE_MOST_OPTIMIZATIONS=1": {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    "JAX_CHECK_TRACER_LEAKS=1": {"JAX_CHECK_TRACER_LEAKS": "1"},
    "JAX_USE_SHARDY_PARTITIONER=0": {"JAX_USE_SHARDY_PARTITIONER": "0"},
    "XLA_FLAGS=--xla_cpu_enable_fast_math=true": {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
    "PYTHONHASHSEED=7": {"PYTHONHASHSEED": "7"},
    "LC_ALL=C": {"LC_ALL": "C", "PYTHONUTF8": "0"},
}
AFTER = ({"jax_enable_x64": True}, {"jax_default_prng_impl": "rbg"}, {"jax_threefry_partitionable": False})
ROUNDING = 2e-3  # of a loss: what other sums in a round may change; so do other numbers of threads


def said_by(folder: Path, environment: dict[str, str], change: dict | None = None) -> tuple[dict, Outcome]:
    """What a process with these variables says of the runs, and whether it ends well.

    Of several kinds of networks where the number of devices or threads changes, and of one elsewhere.
    """
    every = not environment or not environment.keys().isdisjoint({"JAX_NUM_CPU_DEVICES", "NPROC"})
    wanted = RUNS if every and not change else {"mlp": RUNS["mlp"]}
    code = ["-c", SCRIPT, json.dumps(wanted), json.dumps(BASE), json.dumps(change or {})]
    runs = folder / f"runs{random.random()}"
    environment = {"NPROC": "8"} | environment  # XLA's threads, otherwise max(cores, devices)
    said = process([sys.executable, *code], env={**environment, "FEDLAB_RUNS": str(runs), "FEDLAB_BATCH": "1"})
    found = [json.loads(line.removeprefix("found ")) for line in said.out.splitlines() if line.startswith("found ")]
    whole = {name: (names, numbers) for name, names, numbers in found}
    wrong = judged("", said, "", (0, 1) if "refused: " in said.err else (0,))
    return {} if "refused: " in said.err else whole, wrong


def compared(case: str, folder: Path, environment: dict[str, str], change: dict | None, want: dict) -> Outcome:
    """One name, one number."""
    found, ended = said_by(folder, environment, change)
    if ended.wrong:
        return ended._replace(case=case)
    for name, (names, numbers) in found.items():
        if names != want[name][0]:
            continue  # another name
        for metric, values in numbers.items():
            gaps = [abs(a - b) for a, b in zip(values, want[name][1][metric], strict=True)]
            if not max(gaps) <= (0 if "DEVICES" in case else ROUNDING):
                return Outcome(case, f"{name}: {metric} differs by {max(gaps):.2g} under one name", SILENT)
    return Outcome(case)


def in_this_process(name: str, value: object) -> Outcome:
    """A setting that changes numbers is refused by the next run, also where it is set after `setup`."""
    before = getattr(jax.config, name)
    tiny = Settings(**BASE, num_rounds=1, model_options={"width": 4})
    jax.config.update(name, value)
    try:
        return ends(f"{name} = {value} after setup()", lambda: run(tiny), name)
    finally:
        jax.config.update(name, before)


TESTS = ("tests/util/test_jax_setup.py", "tests/runs/test_interruptions.py")
WORDS = "jax_setup or killed_between"


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    yield from (in_this_process(name, value) for each in AFTER for name, value in each.items())
    yield in_this_process("jax_random_seed_offset", 3)
    if share < 1:
        return
    want, ended = said_by(folder, {})
    yield ended._replace(case="as it is")
    attempts = {case: partial(compared, case, folder, each, None, want) for case, each in ENVIRONMENTS.items()}
    attempts |= {str(each): partial(compared, str(each), folder, {}, each, want) for each in AFTER}
    yield from side_by_side(dict(list(attempts.items())[: math.ceil(len(attempts) * share)]))
    yield from units(*TESTS, words=WORDS)
