"""Speed of rounds on a GPU: ours, PyTorch's on the same work, and the variants of a convolution.

    python tests/benchmarks/gpu.py                      # at most 4 minutes; build/benchmarks/gpu.json and gpu.md
    python tests/benchmarks/gpu.py --quick              # a rehearsal on small shapes, for a CPU: a minute

It needs numpy, jax, flax, optax, jaxtyping and rich, and nothing to be installed. Without PyTorch the table has our
rows alone, and says so. All contestants compute the same round, from the same params and in the same order of rows, in
the same precision. The last number of a row is the largest difference of any number from ours after the round. Every
time is the median of whole rounds, from an idle device to an idle device. The files are written after every row. A
contest that does not end in time ends the process, which shows where it was, with status 1.
"""

import argparse
import faulthandler
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too
    if "--quick" in sys.argv:  # it compiles longer than it runs
        sys.path.insert(0, str(Path(__file__).parents[1]))
        import quickly

        os.environ.setdefault("XLA_FLAGS", quickly.FLAGS)

import jax
import numpy as np
from gpu_table import OURS, PEERS, Contest, Table, seconds_of
from gpu_workloads import KEY, WORKLOADS, Workload, flat, shrunk

from fedlab_lite.nn import convolution
from fedlab_lite.util.jax_setup import PRECISIONS, describe_machine

REPEATS = 5


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


def ceilings(quick: bool) -> dict[str, Callable[[], float]]:
    """What measures the best that the device reaches: GB/s of a copy, TFLOP/s of a product by precision."""
    n, copies, times = (256, 4, 2) if quick else (8192, 16, 10)

    def rate(amount: float, function: Callable, *shape: int) -> float:
        """The amount per second, from some runs one after the other, so that the device does not wait."""
        x = jax.random.normal(KEY, shape)  # a product of equal numbers would take less power, and so less time
        compiled = jax.jit(function).lower(x).compile()

        def run():
            for _ in range(times):
                result = compiled(x)
            jax.block_until_ready(result)

        run()
        return times * amount / statistics.median(seconds_of(run, 3))

    def product(precision: str) -> float:
        with jax.default_matmul_precision(precision):
            return rate(2 * n**3 / 1e12, lambda x: x @ x, n, n)

    found = {"copy, GB/s": lambda: rate(8 * copies * n * n / 1e9, lambda x: x + 1, copies, n, n)}
    return found | {
        f"product in {name}, TFLOP/s": lambda theirs=theirs: product(theirs) for name, theirs in PRECISIONS.items()
    }


def torch_version() -> str | None:
    """The version of PyTorch; None without it."""
    try:
        import torch
    except ImportError:
        return None
    return torch.__version__


def started(pool: ThreadPoolExecutor, workload: Workload, variant: str) -> Future:
    """A round of ours that is being compiled, and its arguments; or why it cannot be."""
    try:
        program, arguments = lowered(workload, variant)
    except Exception as error:  # a failure is a row of the table
        found: Future = Future()
        found.set_exception(error)
        return found
    return pool.submit(lambda: (program.compile(), arguments))


def our_contest(workload: Workload, program: Future, deadline: float) -> Contest:
    compiled, arguments = program.result(max(0.0, deadline - time.monotonic()))
    at_once = arguments[0].clients_at_once or workload.clients
    note = f"{at_once} clients in a batch" if jax.default_backend() != "cpu" else "clients one after the other"
    return Contest(
        lambda: jax.block_until_ready(compiled(*arguments)), lambda state: flat(jax.tree.map(np.asarray, state)), note
    )


def torch_contest(workload: Workload, mode: str) -> Contest:
    import gpu_torch
    import torch

    layout = not mode.startswith("vmap") and channels_last(workload)
    note = "channels last" if layout else "channels first"
    if not torch.cuda.is_available():
        note += {"compiled": "; a CPU: traced, not compiled", "eager": "", "vmap": ""}.get(
            mode, "; a CPU: no CUDA graph"
        )
    return Contest(gpu_torch.Round(workload, mode, layout), gpu_torch.arrays, note)


def compete(table: Table, workloads: tuple[Workload, ...], variants: tuple[str, ...]) -> None:
    """Fill the table. The time is of one contest alone: ours are compiled before the first of them."""
    pool = ThreadPoolExecutor(os.cpu_count())
    programs = {}
    for variant in ("im2col", *(name for name in variants if name != "im2col")):
        for workload in workloads if variant == "im2col" or jax.default_backend() != "cpu" else workloads[:1]:
            programs[workload, variant] = started(pool, workload, variant)
    wait(programs.values(), max(0.0, table.deadline - time.monotonic()) / 2)
    wanted = {}
    for (workload, variant), program in programs.items():
        found = table.add(
            workload.title,
            OURS if variant == "im2col" else f"{OURS}, {variant}",
            workload.steps,
            lambda w=workload, p=program: our_contest(w, p, table.deadline),
            wanted.get(workload),
        )
        if variant == "im2col":
            wanted[workload] = found
    pool.shutdown(wait=False, cancel_futures=True)
    if not torch_version():
        return
    import gpu_torch

    for name, mode in gpu_torch.MODES.items():
        for workload in workloads:
            table.add(
                workload.title,
                f"{PEERS}, {name}",
                workload.steps,
                lambda w=workload, m=mode: torch_contest(w, m),
                wanted[workload],
            )


LAYOUTS: dict[Workload, bool] = {}


def channels_last(workload: Workload) -> bool:
    """Whether PyTorch is faster with channels last, found once a workload on a GPU."""
    import gpu_torch
    import torch

    if torch.cuda.is_available() and workload not in LAYOUTS:
        LAYOUTS[workload] = gpu_torch.best_layout(
            lambda channels_last: gpu_torch.Round(workload, "eager", channels_last), lambda run: seconds_of(run, 1)[0]
        )
    return LAYOUTS.get(workload, False)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4, help="the process ends so long after its imports")
    parser.add_argument("--quick", action="store_true", help="small shapes, each round once: a rehearsal")
    parser.add_argument("--precision", choices=("float32", "tf32"), default="float32", help="of all contestants")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder of gpu.json and gpu.md")
    given = parser.parse_args(arguments)
    end = time.monotonic() + 60 * given.minutes
    faulthandler.dump_traceback_later(60 * given.minutes, exit=True)  # even where Python cannot go on
    jax.config.update("jax_default_matmul_precision", PRECISIONS[given.precision])
    about = describe_machine() | {"said": ""}
    about["versions"] |= {"torch": torch_version() or "none"}
    if torch_version():
        import gpu_torch

        gpu_torch.set_precision(given.precision)
    else:
        about["said"] = "PyTorch is not installed here, so its rows are missing."
    if given.quick:
        about["said"] += " A rehearsal on small shapes: its times say nothing."
    table = Table(given.out, about, end - 15, 1 if given.quick else REPEATS)  # the last row takes a part of these 15 s
    for name, measure in ceilings(given.quick).items():
        table.ceiling(name, measure)
    compete(table, tuple(map(shrunk, WORKLOADS)) if given.quick else WORKLOADS, tuple(convolution.VARIANTS))
    faulthandler.cancel_dump_traceback_later()
    print("\n" + table.markdown(), flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # a compilation that came too late cannot be stopped otherwise
