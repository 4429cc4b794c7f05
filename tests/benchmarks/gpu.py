"""Speed of rounds on a GPU: ours, PyTorch's on the same work, and the variants of a convolution.

    python tests/benchmarks/gpu.py                      # at most 4 minutes; build/benchmarks/gpu.json and gpu.md
    python tests/benchmarks/gpu.py --quick              # a rehearsal on small shapes, for a CPU: a minute

It needs numpy, jax, flax, optax, jaxtyping and rich, and nothing to be installed. Without PyTorch the table has our
rows alone, and says so. All contestants compute the same round, from the same params and in the same order of rows, in
the same precision. The last column of the table is the largest difference of any number from ours after the round.
Every time is the median of whole rounds, from an idle device to an idle device.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too
    if "--quick" in sys.argv:  # it compiles longer than it runs
        sys.path.insert(0, str(Path(__file__).parents[1]))
        import quickly

        os.environ.setdefault("XLA_FLAGS", quickly.FLAGS)

import jax
import jax.numpy as jnp
import numpy as np
from gpu_workloads import KEY, WORKLOADS, Workload, flat, largest_gap, shrunk

from fedlab_lite.nn import convolution
from fedlab_lite.util.jax_setup import PRECISIONS, describe_machine

REPEATS = 5
OURS, PEERS = "fedlab_lite", "PyTorch"


def lowered(workload: Workload, variant: str = "im2col"):
    """A round of ours, ready to be compiled, and its arguments; `variant`: of a convolution on a GPU."""
    before = convolution.ON_CUDA
    if variant != before:
        jax.clear_caches()  # programs do not know that they depend on it
    try:
        convolution.ON_CUDA = variant
        problem, learner = workload.problem(), workload.learner()
        arguments = (problem, learner.init(problem, KEY), problem.everyone(KEY))
        return jax.jit(learner.round).lower(*arguments), arguments
    finally:
        if variant != before:
            convolution.ON_CUDA = before
            jax.clear_caches()


def median_seconds(run: Callable[[], object], repeats: int, until: float = float("inf")) -> float:
    """The median time of at most so many runs, one at least, of which none begins after the deadline."""
    taken: list[float] = []
    while not taken or (len(taken) < repeats and time.monotonic() < until):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def ceilings(quick: bool) -> dict[str, float]:
    """What the device reaches at best: GB/s of a copy, TFLOP/s of a product by precision."""
    n = 256 if quick else 8192
    x = jnp.ones((n, n))
    more, times = jnp.ones((4 if quick else 16, n, n)), 10

    def seconds(function, *arguments):
        compiled = jax.jit(function).lower(*arguments).compile()
        jax.block_until_ready(compiled(*arguments))
        return (
            median_seconds(lambda: jax.block_until_ready([compiled(*arguments) for _ in range(times)][-1]), 3) / times
        )

    found = {"copy, GB/s": 2 * more.nbytes / seconds(lambda x: x + 1, more) / 1e9}
    for name, theirs in PRECISIONS.items():
        with jax.default_matmul_precision(theirs):
            found[f"product in {name}, TFLOP/s"] = 2 * n**3 / seconds(jnp.matmul, x, x) / 1e12
    return found


class Table:
    """Rows of the result; every contest is caught, so that one failure leaves the others."""

    def __init__(self, deadline: float, repeats: int):
        self.deadline, self.repeats, self.rows = deadline, repeats, []

    def add(self, workload: Workload, who: str, make: Callable[[], tuple[Callable, str]], wanted: dict | None) -> dict:
        """Time `run` of `make() -> (run, note)`, where `run()` is a state; returns the state after the first round."""
        row = {"network": workload.title, "who": who, "steps": workload.steps}
        self.rows.append(row)
        if time.monotonic() > self.deadline:
            row["note"] = "not run: no time left"
            return {}
        try:
            run, row["note"] = make()
            state = run()
            row["ms"] = 1e3 * median_seconds(run, self.repeats, min(self.deadline, time.monotonic() + 8))
            found = flat(jax.tree.map(np.asarray, state)) if who.startswith(OURS) else _numbers(state)
        except TooLate:
            row["note"] = "not run: not compiled in time"
        except Exception as error:  # a rival's failure is a row of the table
            row["note"] = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
        else:
            row["gap"] = None if wanted is None else largest_gap(found, wanted)
            print(f"{workload.title}, {who}: {row['ms']:.1f} ms", flush=True)
            return found
        print(f"{workload.title}, {who}: {row['note']}", flush=True)
        return {}

    def markdown(self, about: dict) -> str:
        lines = [f"{about['device']}; {', '.join(f'{k} {v}' for k, v in about['versions'].items())}", ""]
        lines += [
            f"Precision of products: {about['precision']}. {about['said']}".strip(),
            "",
            "| ceiling | |",
            "| --- | ---: |",
        ]
        lines += [f"| {name} | {value:,.1f} |" for name, value in about["ceilings"].items()]
        lines += ["", "| round | who | ms | client steps/s | time over ours | largest gap | |"]
        lines += ["| --- | --- | ---: | ---: | ---: | ---: | --- |"]
        ours = {row["network"]: row["ms"] for row in self.rows if row["who"] == OURS and "ms" in row}
        for row in self.rows:
            ms, base, gap = row.get("ms"), ours.get(row["network"]), row.get("gap")
            cells = ["–"] * 3 if ms is None else [f"{ms:.1f}", f"{1e3 * row['steps'] / ms:,.0f}"]
            cells += [] if ms is None else [f"{ms / base:.2f}" if base else "–"]
            cells += ["–" if gap is None else f"{gap:.0e}", row["note"]]
            lines.append(f"| {row['network']} | {row['who']} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


def _numbers(state: dict) -> dict:
    import gpu_torch

    return gpu_torch.arrays(state)


def torch_version() -> str | None:
    """The version of PyTorch; None without it."""
    try:
        import torch
    except ImportError:
        return None
    return torch.__version__


def our_contest(workload: Workload, program: Future, arguments: tuple, deadline: float) -> tuple[Callable, str]:
    problem = arguments[0]
    compiled = program.result(max(0.0, deadline - time.monotonic()))
    at_once = problem.clients_at_once or workload.clients
    note = f"{at_once} clients in a batch" if jax.default_backend() != "cpu" else "clients one after the other"
    return lambda: jax.block_until_ready(compiled(*arguments)), note


def torch_contest(workload: Workload, mode: str, channels_last: bool) -> tuple[Callable, str]:
    import gpu_torch
    import torch

    note = "channels last" if channels_last and not mode.startswith("vmap") else "channels first"
    if not torch.cuda.is_available():
        note += {"compiled": "; a CPU: traced, not compiled", "eager": "", "vmap": ""}.get(
            mode, "; a CPU: no CUDA graph"
        )
    return gpu_torch.Round(workload, mode, channels_last), note


def compete(table: Table, workloads: tuple[Workload, ...], variants: tuple[str, ...]) -> str:
    """Fill the table; returns a sentence on what is missing."""
    with_torch = torch_version() is not None
    pool = ThreadPoolExecutor(os.cpu_count())
    programs = {}
    for variant in ("im2col", *(name for name in variants if name != "im2col")):
        for workload in workloads if variant == "im2col" or jax.default_backend() != "cpu" else workloads[:1]:
            program, arguments = lowered(workload, variant)
            programs[workload, variant] = pool.submit(program.compile), arguments
    wanted = {}
    for (workload, variant), (program, arguments) in programs.items():
        who = OURS if variant == "im2col" else f"{OURS}, {variant}"

        def make(workload=workload, program=program, arguments=arguments):
            return our_contest(workload, program, arguments, table.deadline)

        found = table.add(workload, who, make, wanted.get(workload))
        wanted.setdefault(workload, found)
    pool.shutdown(wait=False, cancel_futures=True)
    if not with_torch:
        return "PyTorch is not installed here, so its rows are missing."
    import gpu_torch

    for name, mode in gpu_torch.MODES.items():
        for workload in workloads:
            layout = layouts(workload, table.deadline)
            table.add(
                workload,
                f"{PEERS}, {name}",
                lambda w=workload, m=mode, c=layout: torch_contest(w, m, c),
                wanted[workload] or None,
            )
    return ""


LAYOUTS: dict[Workload, bool] = {}


def torch_is_on_cpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def layouts(workload: Workload, deadline: float) -> bool:
    """Whether PyTorch is faster with channels last, found once a workload."""
    import gpu_torch

    if torch_is_on_cpu():
        return False
    if workload not in LAYOUTS and time.monotonic() < deadline:
        LAYOUTS[workload] = gpu_torch.best_layout(
            lambda channels_last: gpu_torch.Round(workload, "eager", channels_last), lambda run: median_seconds(run, 1)
        )
    return LAYOUTS.get(workload, False)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4, help="no measurement begins later")
    parser.add_argument("--quick", action="store_true", help="small shapes, each round once: a rehearsal")
    parser.add_argument("--precision", choices=("float32", "tf32"), default="float32", help="of all contestants")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder of gpu.json and gpu.md")
    given = parser.parse_args(arguments)
    deadline = time.monotonic() + 60 * given.minutes - 15  # of which the last run takes a part
    jax.config.update("jax_default_matmul_precision", PRECISIONS[given.precision])
    if torch_version():
        import gpu_torch

        gpu_torch.set_precision(given.precision)
    workloads = tuple(map(shrunk, WORKLOADS)) if given.quick else WORKLOADS
    table = Table(deadline, 1 if given.quick else REPEATS)
    about = describe_machine() | {"said": "", "ceilings": ceilings(given.quick)}
    about["precision"] = given.precision
    about["versions"] |= {"torch": torch_version() or "none"}
    about["said"] = compete(table, workloads, tuple(convolution.VARIANTS))
    if given.quick:
        about["said"] += " A rehearsal on small shapes: its times say nothing."
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gpu.json").write_text(json.dumps(about | {"rows": table.rows}, indent=1) + "\n")
    (given.out / "gpu.md").write_text(table.markdown(about))
    print("\n" + table.markdown(about), flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # a compilation that came too late cannot be stopped otherwise
