"""Tests write nowhere but in temporary folders; compiled programs are shared with ordinary runs, to save time."""

import os
import tempfile

import pytest

from fedlab_lite import setup
from fedlab_lite.files import cache_dir

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_dir() / "xla"))  # processes that tests start have it, too
setup()


@pytest.fixture(scope="session", autouse=True)
def _session_cache():
    """One cache for the session, so embedded data are drawn once."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLAB_CACHE", folder)
        yield


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """A run store and a figures folder of the test's own; returns their parent."""
    monkeypatch.setenv("FEDLAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FEDLAB_FIGURES", str(tmp_path / "figures"))
    return tmp_path
