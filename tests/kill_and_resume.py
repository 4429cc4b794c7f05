"""Kill a job at random moments, resume it, and compare with one that was left alone.

    python tests/kill_and_resume.py 20          # 20 SIGKILLs, then the verdict; exit status 1 if anything differs
    python tests/kill_and_resume.py 20 sweep    # another of `JOBS`

Each child process does the job in small steps, which it writes down, and is killed after a random time; a last child
finishes. What it leaves must be the same as the undisturbed one's, bit for bit (all but the seconds).
"""

import contextlib
import io
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def small(rounds: int, **options):
    """Settings of a run on a small problem, which takes the place of all others in this process."""
    from helpers import blobs

    from fedlab_lite.runs import runner

    runner.build_problem = lambda settings: blobs(num_clients=6)
    return runner.Settings(num_clients=6, num_rounds=rounds, cohort_size=3, **options)


def one_run(rounds: int) -> None:
    """Two seeds, with a checkpoint after every round, and the final states."""
    from fedlab_lite.runs import runner

    options = {"epochs": 1, "head_epochs": 1}
    settings = small(rounds, algorithm="fedeq", algorithm_options=options, seeds=(0, 1))
    runner.run(settings, checkpoint_seconds=0, keep_state=True)


def sweep(rounds: int) -> None:
    """Eight short runs of one program: many kills fall between their writes."""
    from fedlab_lite.runs import runner

    runs = {k: small(rounds // 20, algorithm_options={"lr": 0.01 * k, "epochs": 1}) for k in range(1, 9)}
    runner.run_all(runs, checkpoint_seconds=0, keep_state=True)


def tune(rounds: int) -> None:
    """Eight trials, scored on the test rows: this problem has none that are held out."""
    from fedlab_lite.runs import tuning

    settings = small(rounds // 20, algorithm_options={"epochs": 1})
    tuning.score = lambda history, metric: float(history.final(metric.removesuffix("_validation")).mean())
    tuning.tune(settings, {"lr": (0.01, 1.0)}, num_trials=8, batch=2)


def render(rounds: int) -> None:
    """A figure, its numbers and the runs behind it, drawn again and again with other numbers."""
    from helpers import drawn, history

    from fedlab_lite.papers import results
    from fedlab_lite.papers.outcome import Verdict
    from fedlab_lite.plots import style

    os.environ["FEDLAB_COMMIT"] = "1"
    for k in range(rounds // 20):
        runs = {"mlp": history([[0.1, 0.01 * k], [0.1, 0.02 * k]])}
        saved = {"metrics": style.summary(runs, last=1), "histories": runs, "preset": "quick"}
        with contextlib.redirect_stdout(io.StringIO()):  # it is not read
            results.save_figure(
                drawn(runs), "fedeq", "fig04_mlp_vs_deq_mlp", verdict=Verdict("agrees", "counted"), **saved
            )


JOBS = {"run": one_run, "sweep": sweep, "tune": tune, "render": render}


def child(job: str, rounds: int) -> None:
    """Do the job where the environment says."""
    from fedlab_lite.engine import setup

    setup()
    print("begin", flush=True)
    JOBS[job](rounds)


def start(folder: Path, rounds: int = 300, job: str = "run", **options) -> subprocess.Popen:
    """The child, once its imports are over; all that it writes lies in `folder`."""
    where = {"FEDLAB_RUNS": str(folder), "FEDLAB_CACHE": str(folder), "FEDLAB_FIGURES": str(folder / "figures")}
    programs = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(folder.parent / "programs"))
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    environment = os.environ | where | {"PYTHONPATH": path, "JAX_COMPILATION_CACHE_DIR": programs}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    command = [sys.executable, __file__, "child", job, str(rounds)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **options)
    process.stdout.readline()
    return process


def files(folder: Path) -> list[Path]:
    """What a job has written, the leftovers of killed writers apart."""
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix != ".tmp")


def wait_for_writing(folder: Path, process: subprocess.Popen) -> None:
    """Until the process has written something, or has ended."""

    def written() -> set[int]:
        return {file.stat().st_mtime_ns for file in files(folder)}

    before = written()
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):  # renamed between glob and stat
            if written() - before:
                return
        time.sleep(0.005)


def finish(process: subprocess.Popen) -> None:
    process.stdout.close()
    if process.wait() != 0:
        raise RuntimeError(f"the training process ended with {process.returncode}")


def left_by(folder: Path) -> dict[str, object]:
    """What a job has left, by file, without the seconds that it took; every file must be whole."""
    from fedlab_lite.runs import store

    found: dict[str, object] = {}
    for file in files(folder):
        name = str(file.relative_to(folder))
        if file.suffix == ".npz":
            arrays, meta = store.load_arrays(file)
            found[name] = store.sha256_of_arrays(arrays), {k: v for k, v in meta.items() if k != "seconds"}
        elif file.suffix in (".ckpt", ".state"):
            found[name] = store.sha256_of_arrays(store.load_tree(file)["state"])
        elif file.suffix in (".svg", ".png", ".json"):
            found[name] = file.read_bytes()
    return found


def kill_and_resume(kills: int, folder: Path, seed: int = 0, job: str = "run") -> dict:
    """Returns 'kills' that hit a running process, 'resumed' (files found after them), 'same' (bit-identical)."""
    rng = random.Random(seed)
    finish(start(folder / "calm", job=job))
    hits = resumed = 0
    where = folder / "killed"
    while hits < kills:
        process = start(where, job=job)
        if rng.random() < 0.25:  # while it compiles, or reads what there is
            time.sleep(rng.uniform(0, 2))
        else:  # while it works and writes
            wait_for_writing(where, process)
            time.sleep(rng.uniform(0, 0.4))
        process.kill()
        process.stdout.close()
        if process.wait() == 0:  # it was faster than the knife: begin again with a fresh folder
            where = folder / f"killed{hits}"
            continue
        hits += 1
        resumed += bool(where.exists() and files(where))
    finish(start(where, job=job))
    calm, killed = left_by(folder / "calm"), left_by(where)
    left = [name for name in killed if name.endswith(".ckpt")]
    return {"kills": hits, "resumed": resumed, "same": calm == killed, "checkpoints left": left}


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(sys.argv[2], int(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            job = (*sys.argv[2:], "run")[0]
            result = kill_and_resume(int(sys.argv[1]), Path(scratch), seed=random.randrange(10**6), job=job)
        print(result)
        sys.exit(0 if result["same"] else 1)
