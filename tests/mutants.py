"""Mutants: small faults that cosmic-ray puts into the source, and which of them the tests let pass.

    .venv/bin/python -m pip install cosmic-ray
    .venv/bin/python tests/mutants.py                                        # an hour, over all files of `TESTS`
    .venv/bin/python tests/mutants.py --minutes 9 fedlab_lite/algorithms/fedcr.py

Each mutant is one changed operator, number or condition in a copy of the checkout, on which the file's own tests run.
There are thousands, so a fixed random order is tried, one mutant per file in turn, until the time is up. A survivor is
a line that no test looks at, or a change without an effect: its difference is printed.
"""

import argparse
import itertools
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALGORITHMS = sorted(file.stem for file in (ROOT / "fedlab_lite/algorithms").glob("[a-z]*.py"))
TESTS = {  # the tests of a file, as arguments of pytest
    **{f"fedlab_lite/algorithms/{name}.py": f"tests/algorithms -k '{name} or default'" for name in ALGORITHMS},
    "fedlab_lite/algorithms/deprl.py": "tests/algorithms -k 'deprl or theorem or default'",
    "fedlab_lite/algorithms/dispfl.py": "tests/algorithms "
    "-k 'dispfl or mask or largest or erk or share or precision or default'",
    "fedlab_lite/algorithms/fedcr.py": "tests/algorithms -k 'fedcr or divergence or default'",
    "fedlab_lite/algorithms/fedpac.py": "tests/algorithms -k 'fedpac or shares or simplex or default'",
    "fedlab_lite/algorithms/knn_per.py": "tests/algorithms -k 'knn or Neighbours or newcomers_have or default'",
    "fedlab_lite/algorithms/parts/consensus.py": "tests/algorithms -k 'fedreco or measures or batch or Variance'",
    "fedlab_lite/algorithms/parts/distillation.py": "tests/algorithms/test_gossip.py",
    "fedlab_lite/algorithms/parts/gossip.py": "tests/algorithms -k 'gossip or dpsgd or newcomer'",
    "fedlab_lite/algorithms/parts/personal_head.py": "tests/algorithms -k 'fedrep or fedper or newcomer or default'",
    "fedlab_lite/algorithms/parts/server.py": "tests/algorithms/test_optimizers.py",
    "fedlab_lite/data/partition.py": "tests/data/test_partition.py",
    "fedlab_lite/data/partition_deprl.py": "tests/data/test_partition.py -k 'capped or full or lacks'",
    "fedlab_lite/engine/channel.py": "tests/engine/test_channel.py -k 'not EveryAlgorithm'",
    "fedlab_lite/engine/privacy.py": "tests/engine/test_privacy.py",
    "fedlab_lite/papers/outcome.py": "tests/papers/test_verdicts.py tests/papers/test_verdicts_counted.py",
    "fedlab_lite/papers/statistics.py": "tests/papers/test_verdicts.py tests/papers/test_verdict_rates.py",
    "fedlab_lite/papers/learnt.py": "tests/papers/test_verdicts.py",
    "fedlab_lite/papers/errors.py": "tests/papers/test_verdicts.py tests/papers/test_verdict_rates.py",
    "fedlab_lite/papers/verdicts.py": "tests/papers/test_verdicts.py tests/papers/test_verdicts_counted.py",
}
LEFT_OUT = ("BitOr", "Decorator", "Exception")  # of annotations, of dataclasses, of what errors are caught


def mutants(file: str) -> list:
    """All mutants of a file in a fixed random order."""
    from cosmic_ray.commands import init
    from cosmic_ray.work_db import WorkDB, use_db

    with use_db("mutants.sqlite", WorkDB.Mode.create) as db:
        init([Path(file)], db, {})
        found = [item.mutations for item in db.work_items]
    found = [each for each in found if not any(word in each[0].operator_name for word in LEFT_OUT)]
    found.sort(key=lambda each: (each[0].operator_name, each[0].occurrence))
    random.Random(0).shuffle(found)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=list(TESTS), help="files of the package; none: all of `TESTS`")
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many minutes")
    args = parser.parse_args()
    if unknown := set(args.files) - set(TESTS):
        parser.error(f"no tests are listed for {', '.join(sorted(unknown))}; add them to TESTS")
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.work_item import TestOutcome

    end = time.monotonic() + 60 * args.minutes
    score = {file: [0, 0, 0] for file in args.files}  # caught, tried, all
    with tempfile.TemporaryDirectory() as folder:
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "figures")
        os.chdir(shutil.copytree(ROOT, Path(folder) / "copy", ignore=ignored))
        os.environ["PYTHONPATH"] = os.getcwd()
        waiting = {file: mutants(file) for file in args.files}
        for file, found in waiting.items():
            score[file][2] = len(found)
        for file in itertools.cycle(args.files):
            if time.monotonic() > end or not any(waiting.values()):
                break
            if not waiting[file]:
                continue
            command = f"{sys.executable} -m pytest -x -q --no-header -p no:cacheprovider {TESTS[file]}"
            if not score[file][1] and subprocess.run(shlex.split(command), capture_output=True).returncode:
                print(f"{file}: its tests fail without a mutant, or there are none: {TESTS[file]}")
                return 1
            mutant = waiting[file].pop()
            result = mutate_and_test(mutant, command, timeout=300)
            score[file][1] += 1
            if result.test_outcome == TestOutcome.SURVIVED:
                print(f"survived: {mutant[0].operator_name}\n{result.diff}", flush=True)
            else:
                score[file][0] += 1
    print("| file | caught | tried | of |\n| --- | --- | --- | --- |")
    for file, (caught, tried, number) in score.items():
        print(f"| {file.removeprefix('fedlab_lite/')} | {caught} | {tried} | {number} |")
    caught, tried, number = map(sum, zip(*score.values(), strict=True))
    print(f"| all | {caught} | {tried} | {number} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
