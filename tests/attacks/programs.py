"""Section A, second part: permissions of files, programs that would be started, code that would be run."""

import contextlib
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from helpers import history
from util.test_escaping import ITEM, result_with

from attacks.cases import Outcome, holds
from fedlab_lite.data import importing
from fedlab_lite.papers import gallery, notebooks, results
from fedlab_lite.runs import store
from fedlab_lite.util import FedlabError, files


def permissions(folder: Path, umask: int) -> None:
    """What the package writes has the permissions that the umask leaves."""
    before = os.umask(umask)
    try:
        where = folder / f"umask{umask:o}"
        where.mkdir()
        (where / "t.csv").write_text("a,label\n" + "".join(f"{k},{k % 2}\n" for k in range(12)))
        importing.import_data(where / "t.csv", where / "t.npz")
        run = store.save_history(f"run{umask}", history([[0.1, 0.5]], seeds=(0,)))
        tree = store.save_tree(store.path(f"run{umask}", "ckpt"), {"state": {}})
        failure = results.save_failure(ITEM, "quick", {}, "no")
        page = gallery.write_page({ITEM: result_with("x")})
        for file in (where / "t.npz", run, tree, failure, page):
            mode = stat.S_IMODE(file.stat().st_mode)
            assert mode == 0o666 & ~umask, f"{file.name} has the mode {mode:o} under umask {umask:o}"
            file.unlink()
    finally:
        os.umask(before)


OTHERS = ("EPS", "PDF", "ICNS", "ICO", "PCX", "PPM", "SGI", "TGA", "MSP", "DDS", "IM")  # formats that Pillow writes


def other_formats(folder: Path, kind: str) -> None:
    """A picture of a format that is none of ours is refused, whatever its name, and starts no program."""
    from PIL import Image

    root = folder / f"pictures{kind}"
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        picture = Image.new("1" if kind == "MSP" else "RGB", (16, 16))
        picture.save(root / label / "a.png", format=kind)
    started: list = []
    before = subprocess.Popen.__init__
    subprocess.Popen.__init__ = lambda self, *args, **options: started.append(args)
    try:
        importing.import_data(root, folder / f"{kind.lower()}.npz")
        said = ""
    except FedlabError as error:
        said = str(error)
    finally:
        subprocess.Popen.__init__ = before
    assert "pictures are PNG, JPEG" in said, said or f"{kind} is imported"
    assert not started


def annotations(folder: Path, code: str, place: str) -> None:
    """Code in the parameters of a notebook is not run by what reads them."""
    cell = place.format(code)
    cells = [{"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": cell, "outputs": []}]
    file = files.write_atomic(folder / "hostile.ipynb", json.dumps({"cells": cells, "metadata": {}}).encode())
    with contextlib.chdir(folder):
        try:
            notebooks.parameters(file)
            accepted = True
        except FedlabError:
            accepted = False
    assert not (folder / "owned").exists(), "it ran"
    assert not accepted, "it is accepted"


CODE = (
    "__import__('os').mkdir('owned')",
    "open('owned', 'w')",
    "().__class__.__base__.__subclasses__()",
    "[].append(1)",
)
PLACES = ("a: {0} = 1", "a: int = {0}", "a: list[{0}] = 1", "a: 'int' = {0}", "{0}", "a: int = [{0} for _ in (1,)]")


def cases(folder: Path, seed: int, share: float) -> Iterator[Outcome]:
    for umask in (0o022, 0o077, 0o027, 0o007):
        yield holds(f"files under umask {umask:o}", partial(permissions, folder, umask))
    for kind in OTHERS:
        yield holds(f"{kind} called PNG", partial(other_formats, folder, kind))
    for code in CODE:
        for place in PLACES:
            yield holds(f"a parameter {place.format(code)}", partial(annotations, folder, code, place))
