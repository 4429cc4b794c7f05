"""The command line: what it prints, what it refuses and with which exit code."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
from helpers import recorded
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedlab_lite.algorithms import ALGORITHMS, algorithm_options, option_words
from fedlab_lite.cli import EXTRAS, main
from fedlab_lite.data import DATASETS, synthetic
from fedlab_lite.nn import MODELS
from fedlab_lite.papers import Item, notebooks
from fedlab_lite.papers import presets as papers
from fedlab_lite.runs import Settings, store
from fedlab_lite.util import InputError, MissingDataError, files, progress

ITEM = Item("fedeq", "fig04_mlp_vs_deq_mlp")
TINY = ["-p", "num_clients", "3", "-p", "num_rounds", "1", "-p", "train_size", "60", "-p", "test_size", "30"]
TINY += ["-p", "seeds", "0,"]
RUNS = len(papers.settings(*ITEM, "quick"))


def write_notebook(item=ITEM, body="print(preset, num_rounds)", parameters=None):
    """A notebook with a parameters cell and one more."""
    parameters = parameters or "preset: str = 'quick'  # size\nnum_rounds: int | None = None  # communication rounds"
    cells = [nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}), nbformat.v4.new_code_cell(body)]
    metadata = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    file = files.notebooks_dir() / item.paper / f"{item.stem}.ipynb"
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), file)
    return file


PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def wait_for(done, seconds):
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of the test's own: notebooks, READMEs, figures, build."""
    monkeypatch.setattr(files, "project_root", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def produced(monkeypatch):
    """What `run` would compute and render, without doing it."""
    calls = []

    def produce(item, preset, values, force=False, **options):
        calls.append((str(item), preset, values, force))
        return str(item)

    monkeypatch.setattr(notebooks, "produce", produce)
    return calls


def write_result(item=ITEM, preset="laptop", folder=None, **changes):
    file = (folder or files.figures_dir()) / item.paper / f"{item.stem}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(recorded(item, preset, **changes)))


# --- list, data, report -----------------------------------------------------------------------------------------


def test_list(capsys):
    assert main(["list", "tab0"]) == 0
    out = capsys.readouterr().out
    assert "fedeq/tab03_accuracy" in out
    assert "fig04_mlp" not in out


@pytest.mark.parametrize(
    ("register", "names", "words"),
    [
        ("settings", Settings.__dataclass_fields__, "|S_t|, clients per round; None: all"),
        ("algorithms", ALGORITHMS, "sum_i [f_i(u_i, v_i)"),  # FedReCo's problem, brackets and all
        ("models", MODELS, "depth 14"),
        ("datasets", DATASETS, "Characters 0-9 A-Z a-z"),
    ],
)
def test_list_shows_what_settings_can_name(register, names, words, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLAB_DATA", str(tmp_path))  # without data of one's own
    assert main(["list", register]) == 0
    out = capsys.readouterr().out
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert [name for name in rows if name] == list(names)  # a wrapped line has none
    assert words in out


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_hyper_parameter_is_explained(name):
    assert [option for option in algorithm_options(name) if not option_words(ALGORITHMS[name])[option]] == []


def test_every_setting_is_explained():
    assert [name for name, words in option_words(Settings).items() if not words] == []


def test_list_shows_the_options_of_a_name(capsys):
    assert main(["list", "algorithms", "fedeq"]) == 0
    (rho,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│ rho ")]
    assert [cell.strip() for cell in rho.split("│")[2:5]] == [
        "0.01",
        "float, above 0",
        "rho, penalty on theta_i - theta",
    ]
    assert main(["list", "models", "dnn_wide"]) == 0
    assert "(1024, 512, 256, 128, 128)" in capsys.readouterr().out
    for arguments, words in (
        (["algorithms", "fedq"], "did you mean 'fedeq'"),
        (["datasets", "digits"], "not datasets"),
    ):
        assert main(["list", *arguments]) == 2
        assert words in capsys.readouterr().err


def test_the_name_of_a_register_is_no_pattern(capsys):
    assert main(["list", "datasets"]) == 0
    assert "tab01_datasets" not in capsys.readouterr().out
    assert main(["list", "*datasets*"]) == 0
    assert "tab01_datasets" in capsys.readouterr().out


def test_list_shows_own_data(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("FEDLAB_DATA", str(tmp_path))
    (tmp_path / "photos.npz").write_bytes(b"")
    assert main(["list", "datasets"]) == 0
    assert "npz:photos" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    project = tomllib.loads((files.project_root() / "pyproject.toml").read_text())["project"]
    assert (stopped.value.code, capsys.readouterr().out) == (0, f"fedlab_lite {project['version']}\n")


COMPLETE = """
source "$1"
COMP_WORDS=(fedlab "${@:2}") COMP_CWORD=$(($# - 1))
_shtab_fedlab
echo "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [(["r"], "runs run report"), (["run", "fedeq/fig04"], str(ITEM)), (["data", "st"], "status")],
)
def test_bash_completes(words, completed, tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "fedlab"
    script.write_text(capsys.readouterr().out)
    bash = ["bash", "-c", COMPLETE, "bash", str(script), *words]
    assert subprocess.run(bash, capture_output=True, text=True, check=True).stdout == f"{completed}\n"


def test_zsh_has_a_script_too(capsys):
    assert main(["completion", "zsh"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("#compdef fedlab")
    assert f"compadd -- {papers.items(of=papers.ALL)[0]}" in out


@pytest.mark.slow
@pytest.mark.parametrize("command", [["list"], ["list", "models"], ["report"], ["report", "--help"]])
def test_output_whose_reader_has_ended(command):
    """As `fedlab list | head -1`: no traceback."""
    reads, writes = os.pipe()
    os.close(reads)
    write_result()
    done = subprocess.run([sys.executable, "-m", "fedlab_lite", *command], stdout=writes, stderr=subprocess.PIPE)
    os.close(writes)
    assert (done.returncode in (0, 1), done.stderr) == (True, b"")


RUN = [sys.executable, "-m", "fedlab_lite"]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirected", "environment", "code", "words"),
    [
        (">&-", {}, 0, ""),
        (">&- 2>&- <&-", {}, 0, ""),
        ("> /dev/full", {}, 2, "No space left"),
        ("", ASCII, 0, "+---"),
        ("", {"JAX_NUM_CPU_DEVICES": "many"}, 2, "jax_num_cpu_devices"),
    ],
)
def test_streams_and_settings_of_the_environment(redirected, environment, code, words):
    """Each ends in a result or in one line."""
    command = f"{shlex.join(RUN)} list fedeq/fig04 {redirected}"
    done = subprocess.run(["sh", "-c", command], env=os.environ | environment, **PIPES)
    assert (done.returncode, words in done.stdout + done.stderr) == (code, True)
    assert len(done.stderr.splitlines()) == (1 if code else 0)


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["JAX_PLATFORMS=nowhere", "JAX_NUM_CPU_DEVICES=0", "JAX_TRANSFER_GUARD=disallow"])
def test_devices_that_cannot_start_are_one_line(variable):
    name, _, value = variable.partition("=")
    command = [*RUN, "compute", str(ITEM), *TINY]
    done = subprocess.run(command, env=os.environ | {name: value}, **PIPES)
    assert done.returncode == 2
    assert name in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("value", ["0", "false", "", "no"])
def test_a_variable_that_says_no(checkout, produced, monkeypatch, value):
    monkeypatch.setenv("FEDLAB_COMMIT", value)
    write_notebook()
    assert main(["run", "fig04_mlp", "-p", "num_rounds", "3"]) == 0
    monkeypatch.setenv("FEDLAB_COMMIT", "1")
    assert main(["run", "fig04_mlp", "-p", "num_rounds", "3"]) == 2


def test_too_many_seeds(capsys):
    assert main(["compute", "fig04_mlp", "-p", "seeds", ",".join(map(str, range(15_000)))]) == 2
    assert capsys.readouterr().err == "error: 15,000 seeds; use at most 1,000, each is a run of its own\n"


def test_data_status_and_errors(capsys):
    assert main(["data", "status", "cifar10"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("cifar10: missing")
    assert "data fetch cifar10" in out
    assert main(["data", "fetch", "cifar11"]) == 2
    assert "unknown data set 'cifar11'; did you mean 'cifar10" in capsys.readouterr().err
    assert main(["data", "fetch"]) == 2
    assert "the name of the data set" in capsys.readouterr().err


def test_report_without_results(capsys):
    assert main(["report"]) == 2
    assert "run --headline" in capsys.readouterr().err


def test_report_is_a_line_a_claim(capsys):
    write_result()
    assert main(["report"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "fig04_mlp_vs_deq_mlp" in line]
    for part in ("laptop", "agrees here", "it learns, by 12 points"):
        assert part in line
    assert main(["report", "--full"]) == 0
    out = capsys.readouterr().out
    for part in ("mlp: 1,235 / 2,000", "other: 0.5 / –"):
        assert part in out


def test_own_runs_stand_after_what_is_committed(capsys):
    write_result()
    write_result(
        preset="quick", folder=files.drafts_dir() / "quick", outcome="undecided", word="undecided", reason="too few"
    )
    assert main(["report"]) == 0
    committed, own = (line for line in capsys.readouterr().out.splitlines() if "fedeq/" in line)
    assert "agrees here" in committed
    assert "own run: too few" in own
    assert main(["report", "--drafts"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if "fedeq/" in line]) == 1


@pytest.mark.slow
def test_report_write_refreshes_what_is_generated(checkout, capsys):
    write_result(folder=checkout / "figures")
    (checkout / "README.md").write_text("top\n<!-- papers:begin -->\nold\n<!-- papers:end -->\nbottom\n")
    (checkout / "notebooks").mkdir()
    marks = [f"<!-- {name}:{end} -->\n" for name in ("course", "notebooks") for end in ("begin", "end")]
    (checkout / "notebooks" / "README.md").write_text("".join(marks))
    title = {"cell_type": "markdown", "metadata": {}, "source": ["# T\n<!-- result:begin -->\n<!-- result:end -->\n"]}
    typed = ["preset: str = 'quick'\n", "num_rounds: int | None = None\n"]
    parameters = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": typed}
    empty = {"cells": [title, parameters], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    for item in papers.items(of=papers.ALL):
        file = checkout / "notebooks" / item.paper / f"{item.stem}.ipynb"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(empty))
    assert main(["report", "--write"]) == 0
    text = (checkout / "README.md").read_text()
    assert text.startswith("top\n<!-- papers:begin -->\n| paper |")
    assert text.endswith("<!-- papers:end -->\nbottom\n")
    assert "| 1 | 17 | 0 |" in text  # FeDEQ: one of 18 agrees here, 17 not yet run, no stored runs
    table = (checkout / "notebooks" / "README.md").read_text()
    assert sum(line.startswith("| [") for line in table.splitlines()) == len(papers.items(of=papers.ALL))
    assert "[agrees here](../figures/fedeq/README.md)" in table
    page = (checkout / "figures" / "fedeq" / "README.md").read_text()
    for part in (
        "it learns, by 12 points",
        "| MLP | 1,235 | 2,000 |",
        "| rounds | 7 | 100 |",
        "-p num_rounds 7`",
        "**not yet run**",
    ):
        assert part in page
    cells = json.loads((checkout / "notebooks" / "fedeq" / "fig04_mlp_vs_deq_mlp.ipynb").read_text())["cells"]
    assert "**agrees here** (reduced, `laptop`): it learns, by 12 points." in "".join(cells[0]["source"])
    assert main(["report", "--write"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(".ipynb")  # of the first time; nothing left to do
    (checkout / "README.md").write_text("no marks")
    assert main(["report", "--write"]) == 2
    assert "<!-- papers:begin -->" in capsys.readouterr().err


# --- compute ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_compute_fills_the_store(capsys):
    assert main(["compute", "fig04_mlp", *TINY, "-p", "dataset", "textures", "-p", "partition", "by_label"]) == 2
    assert "would be lost" in capsys.readouterr().err  # 3 clients cannot hold 10 classes, two each
    command = ["compute", "fig04_mlp", *TINY, "-p", "dataset", "textures", "-p", "partition", "iid"]
    assert main(command) == 0
    assert f"fedeq/fig04_mlp_vs_deq_mlp  quick  data embedded textures  {RUNS} runs" in capsys.readouterr().out
    stored = sorted(files.runs_dir().iterdir())
    assert [file.suffix for file in stored] == [".npz"] * RUNS
    history = store.load_history(stored[0].stem)
    assert (history.about["dataset"], history.client_accuracy.shape, history.num_rounds) == ("textures", (1, 3), 1)


BARE = """
import sys
blocked = set(sys.argv.pop().split(","))

class Block:
    def find_spec(self, name, path=None, target=None):
        if name in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
from fedlab_lite.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def not_core():
    """The modules on this machine that `pip install fedlab-lite` without extras would not bring."""
    project = tomllib.loads((files.project_root() / "pyproject.toml").read_text())["project"]
    core, waiting = set(), project["dependencies"]
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name not in core and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            core.add(canonicalize_name(requirement.name))
            waiting += metadata.requires(requirement.name) or []
    modules = metadata.packages_distributions().items()
    own = {"fedlab_lite", *(name for name, owners in modules if core & {canonicalize_name(each) for each in owners})}
    return {name for name, _ in modules if name not in own}


@pytest.mark.slow
def test_compute_needs_nothing_but_the_core(not_core):
    assert {"matplotlib", "papermill", "optuna", "networkx", "seaborn", "IPython", "pytest"} <= not_core
    command = ["compute", "fig04_mlp", *TINY, "-p", "dataset", "textures", "-p", "partition", "iid"]
    bare = [sys.executable, "-c", BARE, *command, ",".join(not_core)]
    done = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(files.runs_dir().glob("*.npz"))) == RUNS


@pytest.mark.slow
def test_a_loan_needs_nothing_but_the_core(not_core, tmp_path):
    """What one machine computes in some minutes and packs, another one merges."""
    command = ["compute", "fig04_mlp", *TINY, "-p", "dataset", "textures", "-p", "partition", "iid", "--only", "local"]
    command += ["--minutes", "5", "--jobs", "1", "--pack", str(tmp_path / "runs.zip")]
    for words, folder in ((command, "there"), (["runs", "merge", str(tmp_path / "runs.zip")], "here")):
        bare = [sys.executable, "-c", BARE, *words, ",".join(not_core)]
        environment = os.environ | {"FEDLAB_RUNS": str(tmp_path / folder)}
        done = subprocess.run(bare, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert [file.suffix for file in (tmp_path / folder).iterdir()] == [".npz"]


@pytest.mark.parametrize(
    ("missing", "command", "message"),
    [
        (
            "matplotlib",
            ["compute", "fig04_mlp", *TINY],
            "matplotlib, which is not installed: pip install 'fedlab-lite[data]'",
        ),
        (
            "pandas",
            ["data", "import", "people.csv"],
            "needs pandas, which is not installed: pip install 'fedlab-lite[data]'",
        ),
        (
            "papermill",
            ["run", "tab02_param"],
            "papermill, which is not installed: pip install 'fedlab-lite[notebooks]'",
        ),
        ("shtab", ["completion", "bash"], "shtab, which is not installed: pip install 'fedlab-lite[completion]'"),
        ("distributed", ["run", "tab02_param", "--jobs", "2"], "need Dask: pip install 'fedlab-lite[dist]'"),
    ],
)
def test_what_is_missing_is_named_with_its_extra(missing, command, message, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("FEDLAB_CACHE", str(tmp_path))  # no glyphs in it, and none that were drawn before
    monkeypatch.setattr(synthetic, "_outlines", synthetic._outlines.__wrapped__)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(command) == 2
    assert message in capsys.readouterr().err


def test_extras_bring_what_is_missing():
    extras = tomllib.loads((files.project_root() / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for module, extra in EXTRAS.items():
        package = {"PIL": "pillow"}.get(module, module)
        assert package in {Requirement(each).name for each in extras[extra]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compute", "tab99"], "no notebook matches 'tab99'"),
        (["compute", "fig04_mlp", "--preset", "quikc"], "unknown preset 'quikc'; did you mean 'quick'"),
        (["compute", "fig04_mlp", "-p", "num_round", "3"], "did you mean 'num_rounds'"),
        (
            ["compute", "fig04_mlp", "-p", "num_rounds", "many"],
            "num_rounds must be of type int, at least 0, got 'many'",
        ),
        (["compute", "fig04_mlp", "-p", "algorithm", "fedavgg"], "unknown algorithm 'fedavgg'; did you mean 'fedavg'"),
        (["compute", "fig04_mlp", "-p", "dataset", "glyph"], "unknown data set 'glyph'; did you mean 'glyphs'"),
        (
            ["compute", "fig04_mlp", "-p", "dataset", "cifar10", "-p", "partition", "iid"],
            "cifar10 is not on this machine",
        ),
        (["compute", "fig04_mlp", "--preset", "quick", "-p", "preset", "paper"], "differ; set only one of them"),
        (["compute", "fig04_mlp", "-p", "preset", "papre"], "unknown preset 'papre'; did you mean 'paper'?"),
        (["compute", "fig04_mlp", "-p", "paper", "fedeq"], "unknown parameter of fedeq/fig04_mlp_vs_deq_mlp at quick"),
        (["compute", "fig04_mlp", "-p", "width", "0"], "width of model mlp must be of type int, at least 1, got 0"),
        (["compute", "fig04_mlp", "-p", "seeds", "9223372036854775808,"], "each 0 to 2^31 - 1"),
        (["run", "tab99"], "no notebook matches 'tab99'"),
        (["run", "fedeq/tab99"], "similar: fedeq/tab0"),
        (["rnu"], "unknown command 'rnu'; did you mean 'run'?"),
        (["nonsense", "--help"], "unknown command 'nonsense' (known: book, "),
        (["list", "datasetz"], "did you mean 'datasets'?"),
    ],
)
def test_bad_input_is_a_message_and_exit_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    assert not files.runs_dir().exists()


def test_a_pattern_that_is_very_long_is_compared_with_nothing(capsys):
    assert main(["run", "a" * 100_000]) == 2
    assert len(capsys.readouterr().err) < 200


def test_a_typo_gets_the_near_names_alone(capsys):
    for typo, near in (("fedeq/tab99", "fedeq/tab0"), ("fig04_mpl", str(ITEM)), ("tab3", "/tab03_")):
        assert main(["run", typo]) == 2
        err = capsys.readouterr().err
        assert near in err
        assert err.count("/") <= 4
    assert main(["run", "zzz"]) == 2
    assert "`fedlab list` shows all" in capsys.readouterr().err


def test_an_installed_package_writes_to_the_working_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "is_checkout", lambda: False)
    monkeypatch.delenv("FEDLAB_FIGURES")
    monkeypatch.chdir(tmp_path)
    assert files.drafts_dir() == tmp_path / "build" / "figures"
    assert main(["report", "--write"]) == 2
    assert "only in a checkout" in capsys.readouterr().err
    for command in (["run", "fig04_mlp"], ["run", "--headline"], ["run", "--committed"], ["report"], ["book"]):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert f"git clone {files.URL}" in err
        assert "`fedlab" not in err
    assert main(["list", "fig04_mlp"]) == 0
    assert files.URL in capsys.readouterr().out


NUMBERS = [["run", "tab03", "--jobs", number] for number in ("0", "-1", "two", "1.5")]
NUMBERS += [["compute", "tab03", "--clients-at-once", "0"], ["compute", "tab03", "--trajectories-at-once", "0"]]


@pytest.mark.parametrize("arguments", [[], ["run"], ["run", "tab03", "-p", "alone"], *NUMBERS])
def test_usage_errors(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "compute", "run", "report", "book", "data", "completion"])
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert f"examples:\n  fedlab {command}" in capsys.readouterr().out


# --- run --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_may_not_train_leaves_out_what_it_cannot_draw(checkout, monkeypatch, capsys):
    """Runs that are not stored, data that are not here, a notebook that trains in its own cells: nothing fails."""
    monkeypatch.setenv("FEDLAB_STORED_ONLY", "1")
    own = Item("fedeq", "fig10_memory_time")
    for item in (ITEM, own):
        write_notebook(item)
    assert main(["run", "fedeq/fig04", "--stored", "-p", "num_rounds", "3"]) == 0
    assert "skipped: fedeq/fig04_mlp_vs_deq_mlp: " in capsys.readouterr().out
    assert main(["run", "fedeq/fig10", "--stored"]) == 0
    out = capsys.readouterr().out
    assert "trains in its own cells, so its runs are not stored" in out
    assert out.splitlines()[-1].startswith("nothing was drawn: each notebook lacks stored runs or data")
    monkeypatch.setattr(notebooks, "compute", lambda *args, **options: 0)
    write_notebook(body="from fedlab_lite.util import MissingDataError\nraise MissingDataError('no cifar10\\nget it')")
    assert main(["run", "fedeq/fig04", "--stored"]) == 0
    assert "skipped: fedeq/fig04_mlp_vs_deq_mlp: no cifar10\n" in capsys.readouterr().out
    monkeypatch.delenv("FEDLAB_STORED_ONLY")
    assert main(["run", "fedeq/fig04"]) == 2
    assert "no cifar10\nget it" in capsys.readouterr().err


@pytest.mark.slow
def test_run_renders_and_reports_failures(checkout, monkeypatch, capsys):
    monkeypatch.setattr(notebooks, "compute", lambda *args, **options: 0)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    monkeypatch.delenv("FEDLAB_BATCH", raising=False)
    own = "os.environ['FEDLAB_BATCH'], os.environ['XLA_PYTHON_CLIENT_PREALLOCATE']"
    write_notebook(body=f"import os\nprint(preset, num_rounds, {own})")
    assert main(["run", "fig04_mlp", "-p", "num_rounds", "3"]) == 0
    out = capsys.readouterr().out
    rendered = checkout / "build" / "notebooks" / "quick" / "fedeq" / "fig04_mlp_vs_deq_mlp,num_rounds=3.ipynb"
    assert "[1/1] fedeq/fig04_mlp_vs_deq_mlp  quick  " in out
    assert str(rendered) in out
    assert nbformat.read(rendered, 4).cells[-1].outputs[0].text == "quick 3 1 false\n"
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
    assert "FEDLAB_BATCH" not in os.environ
    write_notebook(body="assert num_rounds is None, 'too few rounds'")
    assert main(["run", "fig04_mlp", "-p", "num_rounds", "3"]) == 1
    error = capsys.readouterr().err
    assert "fedeq/fig04_mlp_vs_deq_mlp failed: AssertionError: too few rounds" in error
    assert "Traceback" not in error


SAVES = """
import matplotlib.pyplot as plt
import fedlab_lite as fl
verdict, metrics = fl.verdicts.derived({"rounds": (num_rounds, True)}), {"mlp": {"mean": 1.0, "std": 0.0, "n": 1}}
about = {"verdict": verdict, "preset": preset, "metrics": metrics, "data_source": "", "seeds": [0], "published": []}
fl.papers.save_figure(plt.figure(), "fedeq", "fig04_mlp_vs_deq_mlp", **about)
"""


@pytest.mark.slow
def test_a_run_with_changed_parameters_has_a_name_of_its_own(checkout, monkeypatch, capsys):
    """It leaves the preset's result as it was, and `report` has a line for each, which says what differs."""
    monkeypatch.setattr(notebooks, "compute", lambda *args, **options: 0)
    write_notebook(body=SAVES)
    own = papers.settings(*ITEM, "quick")["mlp"].num_rounds
    assert main(["run", "fig04_mlp", "-p", "num_rounds", str(own)]) == 0  # the preset's own number
    folder = files.drafts_dir() / "quick" / "fedeq"
    plain = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert set(plain) == {f"{ITEM.stem}{suffix}" for suffix in (".json", ".png", ".svg")}
    assert main(["run", "fig04_mlp", "-p", "num_rounds", "3"]) == 0
    found = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {name: found[name] for name in plain} == plain
    assert set(found) - set(plain) == {f"{ITEM.stem},num_rounds=3{suffix}" for suffix in (".json", ".png", ".svg")}
    write_notebook(body="raise ValueError('no')")
    assert main(["run", "fig04_mlp", "-p", "num_rounds", "3"]) == 1
    assert (folder / f"{ITEM.stem}.json").read_bytes() == plain[f"{ITEM.stem}.json"]
    capsys.readouterr()
    assert main(["report", "--drafts"]) == 0
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith(str(ITEM)))
    assert "with" not in first.split("seen")[0]
    assert second.endswith("  with num_rounds=3: the notebook failed: ValueError: no")
    written = sorted(file.name for file in (checkout / "build" / "notebooks" / "quick" / "fedeq").iterdir())
    assert written == [f"{ITEM.stem},num_rounds=3.ipynb", f"{ITEM.stem}.ipynb"]


def test_a_changed_run_replaces_no_committed_figure(checkout, produced, monkeypatch, capsys):
    monkeypatch.setenv("FEDLAB_COMMIT", "")  # `--commit` sets it
    write_notebook()
    own = papers.settings(*ITEM, "quick")["mlp"].num_rounds
    assert main(["run", "fig04_mlp", "--commit", "-p", "num_rounds", "3"]) == 2
    assert "num_rounds would replace the preset's in a committed figure; leave out --commit" in capsys.readouterr().err
    assert not produced
    assert main(["run", "fig04_mlp", "--commit", "-p", "num_rounds", str(own), "-p", "preset", "quick"]) == 0
    write_result(preset="laptop")
    assert main(["run", "--committed", "--commit"]) == 0  # with the parameters that it has
    assert produced.pop() == ("fedeq/fig04_mlp_vs_deq_mlp", "laptop", {"num_rounds": 7}, False)
    assert main(["run", "--committed", "--commit", "-p", "num_rounds", "3"]) == 2


def test_what_differs_from_the_preset(checkout):
    write_notebook(
        parameters="preset: str = 'quick'\nseeds: list[int] | None = None\nbandwidth: float = 2.0\noverrides: dict = {}"
    )
    plain = papers.settings(*ITEM, "quick")["mlp"]
    same = {"seeds": list(plain.seeds), "bandwidth": 2, "dataset": plain.dataset, "num_rounds": None, "preset": "quick"}
    assert notebooks.changed(ITEM, "quick", same) == {}
    other = {"seeds": [7], "bandwidth": 3, "overrides": {"partition": "by_label", "lr": 0.123, "num_rounds": 3}}
    expected = {"seeds": (7,), "bandwidth": 3.0, "partition": "by_label", "lr": 0.123, "num_rounds": 3}
    assert notebooks.changed(ITEM, "quick", other) == expected


def test_a_chapter_of_the_course_has_no_preset(checkout, capsys):
    chapter = Item("learn", "11_how_fast")
    write_notebook(chapter, body="print('preset' in dir(), width)", parameters="width: int = 64  # of a layer")
    assert main(["run", "learn/11", "-p", "width", "8"]) == 0
    rendered = checkout / "build" / "notebooks" / "quick" / "learn" / "11_how_fast,width=8.ipynb"
    assert str(rendered) in capsys.readouterr().out
    assert nbformat.read(rendered, 4).cells[-1].outputs[0].text == "False 8\n"
    assert main(["run", "learn/11", "-p", "preset", "quick"]) == 2
    assert "unknown parameter of 11_how_fast 'preset'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["-p", "num_round", "3"], "unknown parameter of fig04_mlp_vs_deq_mlp 'num_round'; did you mean 'num_rounds'"),
        (
            ["-p", "num_rounds", "3.5"],
            "num_rounds of fig04_mlp_vs_deq_mlp must be of type int | None, at least 0, got 3.5",
        ),
    ],
)
def test_run_checks_parameters_before_it_computes(checkout, produced, capsys, extra, message):
    write_notebook()
    assert main(["run", "fig04_mlp", *extra]) == 2
    assert message in capsys.readouterr().err
    assert produced == []


def test_the_preset_may_be_given_as_a_parameter(checkout, produced):
    write_notebook()
    assert main(["run", "fig04_mlp", "-p", "preset", "paper", "-p", "num_rounds", "3"]) == 0
    assert produced.pop() == ("fedeq/fig04_mlp_vs_deq_mlp", "paper", {"num_rounds": 3}, False)
    write_result(preset="laptop")
    assert main(["run", "--committed", "-p", "preset", "quick"]) == 0
    assert produced.pop() == ("fedeq/fig04_mlp_vs_deq_mlp", "quick", {"num_rounds": 7}, False)


def test_quiet(checkout, produced, monkeypatch, capsys):
    monkeypatch.setenv("FEDLAB_BATCH", "")
    write_notebook()
    assert main(["run", "fig04_mlp", "--quiet"]) == 0
    assert produced
    assert capsys.readouterr().out == ""
    assert os.environ["FEDLAB_BATCH"] == "1"  # no bars either
    assert main(["run", "fig04_mpl", "--quiet"]) == 2
    assert "no notebook matches" in capsys.readouterr().err


def test_a_log_gets_a_line_a_minute(monkeypatch, capsys):
    for name in ("CI", "FEDLAB_BATCH", "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress, "SECONDS", 0.02)
    for shown, said in ((None, "training: 3 of 9 rounds, 0 min\n"), (False, "")):
        with progress.progress_bar("training", 9, shown) as advance:
            advance(3)
            time.sleep(0.1)
        err = capsys.readouterr().err
        assert err.startswith(said)
        assert bool(err) == bool(said)
    monkeypatch.setenv("FEDLAB_BATCH", "1")
    with progress.progress_bar("training", 9):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_a_notebook_that_is_not_written_yet(checkout, produced, capsys):
    assert main(["run", "fig04_mlp"]) == 2
    assert "fig04_mlp_vs_deq_mlp.ipynb does not exist" in capsys.readouterr().err


def test_one_bad_job_does_not_stop_the_others(checkout, monkeypatch, capsys):
    def produce(item, preset, values, force, **options):
        if preset == "laptop":
            raise MissingDataError("fashion_mnist is not on this machine")
        return f"{item} {preset}"

    monkeypatch.setattr(notebooks, "produce", produce)
    for item, preset in ((ITEM, "laptop"), (Item("fedeq", "tab03_accuracy"), "quick")):
        write_notebook(item)
        write_result(item, preset=preset)
    assert main(["run", "--committed"]) == 2
    captured = capsys.readouterr()
    assert "[1/2] error: fashion_mnist is not on this machine\n" in captured.err
    assert "[2/2] fedeq/tab03_accuracy quick\n" in captured.out


def test_run_headline_and_committed(checkout, produced):
    write_notebook()
    for item in papers.headlines():
        write_notebook(item)
    assert main(["run", "--headline", "--force"]) == 0
    assert [produced.pop(0) for _ in papers.headlines()] == [
        (str(item), "quick", {}, True) for item in papers.headlines()
    ]
    write_result(preset="laptop")
    assert main(["run", "--committed"]) == 0
    assert produced.pop() == ("fedeq/fig04_mlp_vs_deq_mlp", "laptop", {"num_rounds": 7}, False)
    assert produced == []


def test_produce_computes_with_the_parameters_that_runs_take(checkout, monkeypatch):
    write_notebook(parameters="preset: str = 'quick'\nlr: float | None = None\ncolour: str = 'red'")
    calls = []
    monkeypatch.setattr(notebooks, "compute", lambda *args, **options: calls.append((args, options)))
    monkeypatch.setattr(notebooks, "render", lambda *args: calls.append(args))
    notebooks.produce(ITEM, "quick", {"lr": 0.5, "colour": "blue"}, force=True)
    assert calls == [
        ((ITEM, "quick", {"lr": 0.5}), {"force": True}),
        (ITEM, "quick", {"lr": 0.5, "colour": "blue"}),
    ]


LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="it looks at processes in /proc")
INTERRUPTED = "interrupted; the same command continues from the last checkpoint\n"


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 0.4, 0.9])
def test_interrupted_while_it_imports(seconds):
    """From the moment that a thread waits for it; before, in its first tenth of a second, Python is Python."""
    process = subprocess.Popen([sys.executable, "-m", "fedlab_lite", "report"], **PIPES)
    wait_for(lambda: len(list(Path(f"/proc/{process.pid}/task").glob("*"))) > 1, 20)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=2)
    done = "no results in" in err  # it was faster, and ends, or is ended while Python tidies up
    assert (process.returncode, err) == (130, INTERRUPTED) or (done and process.returncode in (2, 130, -signal.SIGINT))
    assert "Traceback" not in err


IN_A_KERNEL = """
import sys
from pathlib import Path
from fedlab_lite import __main__
from fedlab_lite.papers import notebooks
from fedlab_lite.util import files
root = Path(sys.argv[1])
files.project_root = lambda: root
notebooks.compute = lambda *args, **options: 0
sys.argv = ["fedlab", "run", "fig04_mlp"]
sys.exit(__main__.main())
"""


@LINUX
@pytest.mark.slow
def test_interrupted_while_a_notebook_runs(checkout):
    """The kernel ends, too."""
    write_notebook(
        body=f"import os, time\nopen({str(checkout / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", IN_A_KERNEL, str(checkout)], **PIPES)
    wait_for(lambda: (checkout / "pid").exists() and (checkout / "pid").read_text(), 60)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=2)[1] == INTERRUPTED
    assert process.returncode == 130
    wait_for(lambda: not Path(f"/proc/{(checkout / 'pid').read_text()}").exists(), 10)


@pytest.mark.slow
def test_interrupted_in_compiled_code():
    """Python's own handler would wait for it to end."""
    code = (
        "import jax, jax.numpy as jnp\nfrom fedlab_lite.__main__ import end_when_interrupted\nend_when_interrupted()\n"
    )
    code += (
        "print('now', flush=True)\njax.block_until_ready(jax.lax.fori_loop(0, 10**9, lambda i, x: x @ x, jnp.eye(99)))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], **PIPES)
    process.stdout.readline()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=2)[1] == INTERRUPTED
    assert process.returncode == 130


def write_jobs(*presets):
    """A committed result for each preset, so that `run --committed` has as many jobs."""
    for item, preset in zip((ITEM, Item("fedeq", "tab03_accuracy"), Item("fedeq", "fig05_rho")), presets, strict=False):
        write_notebook(item)
        write_result(item, preset=preset)


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [None, "0.2"])
def test_jobs_run_on_a_dask_cluster(checkout, monkeypatch, capsys, fraction):
    import distributed

    def produce(item, preset, values, force, **options):
        if item.stem == "tab03_accuracy":
            raise notebooks.NotebookFailed(f"{item} failed")
        return f"{item} {preset} {values} {force}"

    workers = []

    def in_threads(*, env, host, **options):
        workers.append(env)
        return in_processes(processes=False, **options)

    write_jobs("laptop", "quick", "quick")
    in_processes = distributed.LocalCluster
    monkeypatch.setattr(notebooks, "produce", produce)
    monkeypatch.setattr(distributed, "LocalCluster", in_threads)
    if fraction:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", fraction)
    assert main(["run", "--committed", "--jobs", "2"]) == 1
    captured = capsys.readouterr()
    assert "/3] fedeq/fig04_mlp_vs_deq_mlp laptop {'num_rounds': 7} False\n" in captured.out
    assert "/3] fedeq/fig05_rho quick {'num_rounds': 7} False\n" in captured.out
    assert "/3] error: fedeq/tab03_accuracy failed\n" in captured.err
    assert workers == [{"FEDLAB_BATCH": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": fraction or "0.450"}]


SILENT = [pytest.param(each, marks=pytest.mark.slow) for each in ("nowhere.invalid:1", "127.0.0.1:1")]


@pytest.mark.parametrize("address", ["no address", *SILENT])
def test_a_scheduler_that_does_not_answer(checkout, produced, capsys, address):
    write_notebook()
    began = time.monotonic()
    assert main(["run", "fig04_mlp", "--dask", address]) == 2
    assert f"no Dask scheduler answers at {address}" in capsys.readouterr().err
    assert time.monotonic() - began < 7  # 5 s, and the import of Dask


@pytest.mark.slow
def test_a_cluster_of_our_own_is_on_this_machine_alone(checkout, monkeypatch):
    """And whoever asks it over HTTP learns nothing."""
    psutil = pytest.importorskip("psutil")
    distributed = pytest.importorskip("distributed")
    seen = []

    def looked_at(**options):
        cluster = real(**options)
        here = psutil.Process()
        for process in (here, *here.children(recursive=True)):
            seen.extend(each.laddr for each in process.net_connections("tcp") if each.status == "LISTEN")
        return cluster

    real = distributed.LocalCluster
    monkeypatch.setattr(distributed, "LocalCluster", looked_at)
    write_jobs("quick")
    main(["run", "--committed", "--jobs", "2", "-p", "unknown", "1"])
    assert not seen  # refused before
    monkeypatch.setattr(notebooks, "produce", lambda item, *others, **options: str(item))
    assert main(["run", "--committed", "--jobs", "2"]) == 0
    assert {address.ip for address in seen} == {"127.0.0.1"}


@pytest.mark.slow
def test_a_killed_dask_worker_is_its_notebooks_error(checkout, monkeypatch, capsys):
    """It is tried again once. And a worker has as many devices as a run without Dask: the same run, the same bits."""
    tries = checkout / "tries"

    def produce(item, preset, values, force, **options):
        import os

        if item.stem == "tab03_accuracy":
            with open(tries, "a") as file:
                print("once", file=file)
            os.kill(os.getpid(), 9)
        return f"{item} {os.environ.get('JAX_NUM_CPU_DEVICES')} {os.environ['XLA_PYTHON_CLIENT_MEM_FRACTION']}"

    write_jobs("quick", "quick", "quick")
    monkeypatch.setattr(notebooks, "produce", produce)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    assert main(["run", "--committed", "--jobs", "2"]) == 1
    captured = capsys.readouterr()
    assert "/3] error: fedeq/tab03_accuracy: its Dask worker was killed twice" in captured.err
    assert len((checkout / "tries").read_text().splitlines()) == 2
    for done in ("fedeq/fig04_mlp_vs_deq_mlp", "fedeq/fig05_rho"):
        assert f"/3] {done} None 0.450\n" in captured.out


# --- notebooks as files -----------------------------------------------------------------------------------------


def test_parameters_of_a_notebook(checkout):
    file = write_notebook(parameters="preset: str = 'quick'  # size\nseeds: list[int] | None = None\nlr: float = 0.1")
    assert notebooks.parameters(file) == {
        "preset": (str, "quick"),
        "seeds": (list[int] | None, None),
        "lr": (float, 0.1),
    }
    notebooks.check_parameters(file, {"seeds": [1, 2], "lr": 1, "preset": "laptop"})
    for values in ({"seeds": 3}, {"seeds": ["a"]}, {"lr": "fast"}, {"lr": True}):
        with pytest.raises(InputError, match="must be of type"):
            notebooks.check_parameters(file, values)


OWNS = "__import__('pathlib').Path('owned').touch()"
HOSTILE = (f"a: {OWNS} = 1", f"a: int = {OWNS}", f"a: dict[str, {OWNS}] = 1", f"a: int = {'-' * 100_000}1")
WRONG = ("preset = 'quick'", "rounds: int", "rounds: int = 2 + x", "rounds: Rounds = 2", "rounds: int =")


@pytest.mark.parametrize("cell", [*WRONG, *HOSTILE], ids=range(9))
def test_parameters_are_typed_literals(checkout, cell, monkeypatch):
    """Nothing of them is evaluated."""
    monkeypatch.chdir(checkout)
    with pytest.raises(InputError, match=r"(`name: type = literal`|built-in types and literals|is not Python)"):
        notebooks.parameters(write_notebook(parameters=cell))


def test_a_notebook_without_parameters_cell(checkout):
    file = write_notebook()
    content = json.loads(file.read_text())
    content["cells"][0]["metadata"] = {}
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match="0 cells tagged 'parameters'"):
        notebooks.parameters(file)


def test_missing_notebook(checkout):
    with pytest.raises(MissingDataError):
        notebooks.path(ITEM)
