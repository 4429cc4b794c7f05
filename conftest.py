"""Tests write nowhere but in temporary folders; compiled programs are shared with ordinary runs, to save time."""

import ctypes
import fcntl
import json
import os
import tempfile
from pathlib import Path

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

MEMORY = 2e9  # bytes of a test process, above which it forgets its compiled programs

# In tests every call of these checks its annotations, types and shapes. This has to come before their import.
ENGINE = ("averaging", "channel", "clients", "devices", "evaluation", "graphs", "local", "mixing", "problem", "task")
CHECKED = ("deq", *(f"engine.{name}" for name in ENGINE))
install_import_hook(
    [f"fedlab_lite.{name}" for name in CHECKED],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",  # 1 is a float, as mypy has it
)

from fedlab_lite.engine import setup  # noqa: E402
from fedlab_lite.util import cache_dir  # noqa: E402

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_dir() / "xla"))  # processes that tests start have it, too
setup()
hypothesis.settings.register_profile("fedlab", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("fedlab")


def pytest_collection_modifyitems(items):
    """The longest first, so that no process waits for the last one: slow tests, and the last chapters of the course."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None and "learn/1" not in item.nodeid)


@pytest.fixture(scope="session", autouse=True)
def _session_cache():
    """One cache for the session, so embedded data are drawn once."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLAB_CACHE", folder)
        yield


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """A function: what `compute` returns, in JSON; the first of pytest-xdist's processes that asks computes it."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def found(name, compute):
        file = folder / f"{name}.json"
        with (folder / f"{name}.lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                file.write_text(json.dumps(compute()), encoding="utf-8")
        return json.loads(file.read_text(encoding="utf-8"))

    return found


@pytest.fixture(autouse=True)
def _few_programs():
    """Compiled programs take megabytes and hundreds of memory maps each; without this, gigabytes in each process.

    Linux gives a process 65,530 maps; one more is a crash. The C library keeps what was freed until it is told.
    """
    yield
    pages = Path("/proc/self/statm")
    if pages.exists() and int(pages.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") > MEMORY:
        jax.clear_caches()
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """A run store and a figures folder of the test's own, and no real data but the system's; returns their parent."""
    monkeypatch.delenv("FEDLAB_DATA", raising=False)
    monkeypatch.setenv("FEDLAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FEDLAB_FIGURES", str(tmp_path / "figures"))
    return tmp_path
