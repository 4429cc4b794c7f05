"""Notebooks of two papers and a lesson with a slider in a real JupyterLab: Run All in headless Chromium.

`make browser` runs it. Notebooks are opened in a copy of the project, because JupyterLab saves what it runs.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from fedlab_lite.util import files

INSTALL = "this needs a driver of browsers: pip install -e '.[browser]'"
sync_api = pytest.importorskip("playwright.sync_api", reason=INSTALL)

BATCH = ("CI", "FEDLAB_BATCH", "PYTEST_CURRENT_TEST")  # with these there are no bars
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ROOT = files.project_root()
PATTERNS = ("fl_deq/*.ipynb", "fedreco/*.ipynb", "learn/04_*.ipynb")
NOTEBOOKS = [file.relative_to(ROOT) for pattern in PATTERNS for file in sorted(files.notebooks_dir().glob(pattern))]
FIRST = ("fl_deq", "fig01_parameters_vs_accuracy.ipynb")  # trains before the others, which share its runs
MINUTES = 10  # for one notebook
READY = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status == 'idle'"
RUN = """async () => {
    window.curves = 0
    const curves = () => document.querySelectorAll('.jp-Notebook progress ~ svg').length
    const looks = setInterval(() => window.curves += curves(), 50)
    await window.jupyterapp.commands.execute('notebook:run-all-cells')
    clearInterval(looks)
}"""
SEEN = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content
    const cells = notebook.widgets.map(cell => ({...cell.model.toJSON(), folded: cell.inputHidden === true}))
    const all = selector => [...document.querySelectorAll('.jp-Notebook ' + selector)]
    return {
        cells,
        curves: window.curves,
        pictures: all('img').length,
        broken: all('img').filter(image => !image.naturalWidth).map(image => image.alt || image.src.slice(0, 80)),
        trimmed: all('.jp-TrimmedOutputs').length,
        bars: all('progress').length,
        sliders: all('.widget-slider').length,
        empty: all('.jp-RenderedHTMLCommon:empty').map(line => line.closest('.jp-OutputArea-child').offsetHeight),
    }
}"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab that `fedlab lab` opened on a copy of the project."""
    root = tmp_path_factory.mktemp("project")
    for name in ("fedlab_lite", "notebooks", "figures"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    settings = root / "settings" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    (settings / "tracker.jupyterlab-settings").write_text(json.dumps({"windowingMode": "none"}))  # all cells are drawn
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--no-browser", "--allow-root", f"--port={port}", "--IdentityProvider.token=", "--expose-app-in-browser"]
    env = {name: value for name, value in os.environ.items() if name not in BATCH}
    env |= {"PYTHONPATH": str(root), "JUPYTERLAB_SETTINGS_DIR": str(root / "settings")}
    with (root / "log").open("w") as log:
        command = [sys.executable, "-m", "fedlab_lite", "lab", *options]
        server = subprocess.Popen(command, env=env, cwd=root, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(600):
            if "is running at" in (root / "log").read_text() or server.poll() is not None:
                break
            time.sleep(0.2)
        assert server.poll() is None, (root / "log").read_text()
        yield f"http://127.0.0.1:{port}/lab/tree"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as driver:
        try:
            found = driver.chromium.launch(executable_path=next(filter(None, map(shutil.which, BROWSERS)), None))
        except sync_api.Error as error:
            needs = "this needs Chromium: apt-get install chromium, or playwright install chromium"
            pytest.skip(f"{needs} ({str(error).partition(chr(10))[0]})")
        yield found
        found.close()


@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_run_all(lab, browser, notebook):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(1000 * 60 * MINUTES)
    page.goto(f"{lab}/{notebook}?reset")
    page.wait_for_function(READY)
    page.evaluate(RUN)
    page.wait_for_function("() => [...document.querySelectorAll('.jp-Notebook img')].every(image => image.complete)")
    seen = page.evaluate(SEEN)
    if folder := os.environ.get("FEDLAB_SHOTS"):
        height = page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollHeight")
        page.set_viewport_size({"width": 1200, "height": height + 200})
        page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0")
        page.screenshot(path=f"{folder}/{notebook.stem}.png")
    page.close()
    code = [cell for cell in seen["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in code if "".join(cell["source"]))
    assert not [output["evalue"] for output in outputs if output["output_type"] == "error"]
    assert not [output["text"] for output in outputs if output.get("name") == "stderr"]
    assert seen["pictures"]
    assert not seen["broken"]
    assert not seen["trimmed"]
    assert not seen["bars"]
    assert max(seen["empty"], default=0) <= 1, "bars leave a gap"
    assert [cell["folded"] for cell in code] == ["hide-input" in cell["metadata"].get("tags", []) for cell in code]
    if notebook.parent.name == "learn":
        assert seen["sliders"]
    if notebook.parts[-2:] == FIRST:
        assert seen["curves"], "no curve was seen while it trained"
