"""`fedlab lab` becomes JupyterLab, or says in one line why it cannot."""

import pytest

from fedlab_lite.cli import main
from fedlab_lite.papers import lab
from fedlab_lite.util import files


@pytest.fixture
def calls(monkeypatch):
    found = []
    monkeypatch.setattr(lab.os, "execv", lambda program, arguments: found.append(arguments))
    return found


def test_the_root_is_the_project_and_options_are_passed_on(calls, capsys):
    main(["lab", "--no-browser", "--port", "8899"])
    (arguments,) = calls
    assert f"--ServerApp.root_dir={files.project_root()}" in arguments
    assert arguments[-3:] == ["--no-browser", "--port", "8899"]
    assert capsys.readouterr() == ("", "")


def test_a_read_only_checkout_is_said_and_opened(calls, monkeypatch, capsys):
    monkeypatch.setattr(lab.os, "access", lambda path, mode: False)
    main(["lab"])
    assert "is read-only: neither notebooks nor figures can be saved; copy the project" in capsys.readouterr().err
    assert calls


def test_without_jupyterlab(calls, monkeypatch, capsys):
    monkeypatch.setattr(lab, "find_spec", lambda name: None)
    assert main(["lab"]) == 2
    assert capsys.readouterr().err == "error: this needs JupyterLab: pip install 'fedlab-lite[notebooks]'\n"
    assert not calls


def test_outside_a_checkout(calls, monkeypatch, capsys):
    monkeypatch.setattr(files, "is_checkout", lambda: False)
    assert main(["lab"]) == 2
    assert "git clone" in capsys.readouterr().err
    assert not calls
