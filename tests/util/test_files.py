"""Files: permissions, links, locks, homes that are not there, and what is no JSON or no notebook."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fedlab_lite.util import CorruptFileError, InputError, OutputError, files


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_new_file_and_a_new_folder_have_the_users_permissions(tmp_path, umask):
    assert mode(files.write_atomic(tmp_path / "new" / "a", b"1")) == 0o666 & ~umask
    folder = files.write_folder(tmp_path / "folder", {"a": b"1"})
    assert (mode(folder), mode(folder / "a")) == (0o777 & ~umask, 0o666 & ~umask)
    assert mode(tmp_path / "new") == 0o777 & ~umask


@pytest.mark.parametrize("kept", [0o600, 0o664, 0o755])
def test_a_file_keeps_its_permissions(tmp_path, kept):
    file = files.write_atomic(tmp_path / "a", b"1")
    file.chmod(kept)
    seen = []
    real = os.fsync
    with pytest.MonkeyPatch.context() as patch:
        temporary = lambda: [mode(each) for each in tmp_path.glob(".*.tmp")]  # noqa: E731
        patch.setattr(os, "fsync", lambda handle: (seen.append(temporary()), real(handle)))
        files.write_atomic(file, b"2")
    assert (mode(file), file.read_bytes(), seen) == (kept, b"2", [[kept]])  # the content is never more open


def test_a_link_stays_and_its_target_is_written(tmp_path):
    target = files.write_atomic(tmp_path / "elsewhere" / "a", b"1")
    for name, to in (("link", target), ("new", tmp_path / "elsewhere" / "b")):
        link = tmp_path / name
        link.symlink_to(to)
        files.write_atomic(link, b"2")
        assert link.is_symlink()
        assert to.read_bytes() == b"2"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OutputError, match="cannot write"):
        files.write_atomic(loop, b"3")
    assert not list(tmp_path.rglob("*.tmp"))


def test_what_somebody_writes_is_not_swept(tmp_path, monkeypatch):
    """Although the clock has jumped, which makes the file look old."""
    real, seen = os.fsync, []

    def later(handle):
        for file in tmp_path.glob(".*.tmp"):
            os.utime(file, (0, 0))
        subprocess.run([sys.executable, "-c", SWEEP, str(tmp_path)], check=True)
        seen.append(len(list(tmp_path.glob(".*.tmp"))))
        real(handle)

    monkeypatch.setattr(files.os, "fsync", later)
    files.write_atomic(tmp_path / "a", b"1")
    left = tmp_path / ".a.ffff.tmp"
    left.write_bytes(b"")
    os.utime(left, (0, 0))
    files.sweep(tmp_path)
    assert (seen, sorted(each.name for each in tmp_path.iterdir())) == ([1], ["a"])


SWEEP = "import sys; from pathlib import Path; from fedlab_lite.util import files; files.sweep(Path(sys.argv[1]))"
COUNT = """
import sys, time
from pathlib import Path
from fedlab_lite.util import files
number = Path(sys.argv[1]) / "number"
for _ in range(20):
    with files.only_one(number.parent):
        value = int(number.read_text())
        time.sleep(0.002)
        number.write_text(str(value + 1))
"""


def test_one_process_at_a_time(tmp_path):
    (tmp_path / "number").write_text("0")
    pair = [subprocess.Popen([sys.executable, "-c", COUNT, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in pair] == [0, 0]
    assert (tmp_path / "number").read_text() == "40"


def test_a_home_that_is_not_there(monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert files.runs_dir()  # FEDLAB_RUNS is set, so no home is asked for
    monkeypatch.delenv("FEDLAB_CACHE", raising=False)
    with pytest.raises(InputError, match="set FEDLAB_CACHE"):
        files.data_dir()
    monkeypatch.setenv("FEDLAB_DATA", "~nobody-is-called-this/x")
    with pytest.raises(InputError, match="path without ~"):
        files.data_dir()


def test_advice_names_a_variable_that_helps(monkeypatch, tmp_path):
    for path, words in ((files.runs_dir() / "a", "or set FEDLAB_RUNS"), (tmp_path / "a", "writable.")):
        assert words in str(files.cannot_write(path, OSError(30, "Read-only file system")))


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b"", b"[]", b'{"cells": []}', b'{"cells": [1]}'])
def test_what_is_no_notebook(tmp_path, content):
    file = files.write_atomic(tmp_path / "a.ipynb", content)
    with pytest.raises(CorruptFileError, match=r"a\.ipynb is not"):
        files.read_notebook(file)
