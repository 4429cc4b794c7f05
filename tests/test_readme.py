"""README: its commands run, with computing and downloads replaced by a note, and its findings are those of results."""

import json
import math
import re
import shlex
import subprocess
import sys

import pytest

from fedlab_lite import cli
from fedlab_lite.data import commands
from fedlab_lite.papers import lab, notebooks
from fedlab_lite.util import files

README = (files.project_root() / "README.md").read_text()
SHELL = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
INLINE = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
FEDLAB = sorted({text for text in INLINE if re.match(r"fedlab \w", text)})
MAKE = sorted({line for text in [*SHELL, "\n".join(INLINE)] for line in re.findall(r"^make \w+$", text, re.MULTILINE)})


def test_there_are_commands():
    assert {"make reproduce", "make test", "make bench", "make book"} == set(MAKE)
    assert len(FEDLAB) >= 6


@pytest.mark.parametrize("command", MAKE)
def test_make(command):
    """What it would do: its target exists, and so do the files that it names."""
    done = subprocess.run([*command.split(), "--dry-run"], cwd=files.project_root(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for file in re.findall(r"(?<= )tests/[\w/.]+", done.stdout):
        assert (files.project_root() / file).exists()


@pytest.mark.parametrize("command", FEDLAB)
def test_fedlab(command, monkeypatch, tmp_path, capsys):
    calls = []
    monkeypatch.setattr(notebooks, "produce", lambda *args, **options: calls.append(args) or "produced")
    monkeypatch.setattr(notebooks, "compute", lambda *args, **options: calls.append(args) or 1)
    monkeypatch.setattr(lab.os, "execv", lambda *args: calls.append(args))
    monkeypatch.setattr(commands.sources, "fetch", lambda *args, **options: [calls.append(args)])
    monkeypatch.chdir(tmp_path)
    from PIL import Image

    for owner in ("ann", "bob"):
        (tmp_path / "photos" / owner).mkdir(parents=True)
        for shade in range(6):
            Image.new("RGB", (32, 32), (40 * shade, 9, 200)).save(tmp_path / "photos" / owner / f"{shade}.png")
    assert cli.main(shlex.split(command)[1:]) in (0, None), capsys.readouterr().err
    if command.split()[1] in ("run", "compute", "lab"):
        assert calls


@pytest.mark.slow
def test_the_snippet_prints_one_number_per_seed(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    short = code.replace("num_rounds=10", "num_rounds=1")
    assert short != code
    done = subprocess.run([sys.executable, "-c", short], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"0\.\d+", done.stdout)) == 3


def test_links_and_pictures_exist():
    links = re.findall(r"\]\(([^)#]+?)(?:#[\w-]+)?\)|^\[\w+\]: (\S+)$", README, re.MULTILINE)
    for link in {first or second for first, second in links}:
        if not link.startswith("https:"):
            assert (files.project_root() / link).exists(), link


def test_the_form_of_the_readme():
    lines = README.splitlines()
    assert all(len(line) <= 120 for line in lines if not line.startswith("|"))
    assert "git clone https://" in README


FINDINGS = README.partition("## What we found\n")[2].partition("\n## ")[0].strip().split("\n- ")
MEASURED = re.compile(r"([\d.]+) ± ([\d.]+)")


def test_findings_are_few_and_short():
    assert 1 <= len(FINDINGS) <= 8
    for each in FINDINGS:
        words = MEASURED.sub("number", re.sub(r"\[.*?\]\(.*?\)", "", each)).replace(" %", "").split()
        assert sum(any(map(str.isalnum, word)) for word in words) <= 30, each


@pytest.mark.parametrize("finding", [each for each in FINDINGS if "±" in each])
def test_a_finding_has_the_numbers_of_its_result(finding):
    (paper, stem) = re.search(r"\]\(notebooks/(\w+)/(\w+)\.ipynb\)", finding).groups()
    result = json.loads((files.project_root() / "figures" / paper / f"{stem}.json").read_text())
    found = {(each["mean"], (each["std"] or 0) / math.sqrt(each["n"] or 1)) for each in result["metrics"].values()}
    found |= {(each["difference"], each["error"]) for each in result["comparisons"].values() if "error" in each}
    known = {(f"{abs(mean):.1f}", f"{error:.1f}") for mean, error in found if None not in (mean, error)}
    known |= set(MEASURED.findall(str([each["reason"] for each in (result, *result["also"].values())])))
    assert set(MEASURED.findall(finding)) <= known
    unseen = re.findall(r"cost of\s+([\d.]+) would probably", finding)
    assert set(unseen) <= {f"{each['visible']:.1f}" for each in result["comparisons"].values() if each.get("visible")}
