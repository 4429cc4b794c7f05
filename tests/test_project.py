"""The files around the package: workflows, templates, citation, changelog, containers, and what they name."""

import ast
import json
import re
import shlex
import tomllib

import pytest
import yaml

import fedlab_lite
from fedlab_lite.cli import parser
from fedlab_lite.papers import presets
from fedlab_lite.util import files

ROOT = files.project_root()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
YAML = [*sorted((ROOT / ".github").rglob("*.yml")), ROOT / "CITATION.cff", ROOT / "environment.yml"]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", ".github/pull_request_template.md")]
CONTAINERS = [ROOT / ".binder" / "requirements.txt", ROOT / ".devcontainer" / "devcontainer.json"]
TARGETS = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
NAMED = re.compile(r'(?:[`"]|^|run: )(?:\.venv/bin/)?(make|fedlab) ([\w./-]+)', re.MULTILINE)


def place(file):
    return str(file.relative_to(ROOT))


def steps():
    """The commands of all workflows."""
    for file in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            yield from (step["run"] for step in job["steps"] if "run" in step)


@pytest.mark.parametrize("file", YAML, ids=place)
def test_yaml_can_be_read(file):
    assert isinstance(yaml.safe_load(file.read_text()), dict)


@pytest.mark.parametrize("file", [*YAML, *PAGES, *CONTAINERS], ids=place)
def test_commands_and_targets_that_are_named_exist(file):
    _, commands = parser()
    for tool, name in NAMED.findall(file.read_text()):
        assert name in (TARGETS if tool == "make" else {*commands, "--version"}), f"{tool} {name}"


def test_commands_and_targets_are_found():
    text = '- run: make test\n`fedlab list x` and\n"make book"\n.venv/bin/fedlab run; they make sense, fedlab or not'
    assert NAMED.findall(text) == [("make", "test"), ("fedlab", "list"), ("make", "book"), ("fedlab", "run")]


def test_workflows_call_commands_with_arguments_that_they_take():
    tools = set()
    for step in steps():
        tool, *arguments = shlex.split(step)
        tools.add(tool)
        if tool == "make":
            assert set(arguments) <= TARGETS
        else:
            assert parser()[0].parse_args(arguments).function
    assert tools == {"make", ".venv/bin/fedlab"}


def test_the_versions_of_python_that_are_tested_are_those_that_are_promised():
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]["test"]["strategy"]
    promised = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    assert matrix["matrix"]["python"] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"


def test_containers_install_what_pyproject_lists():
    (line,) = (ROOT / ".binder" / "requirements.txt").read_text().splitlines()
    extras = re.fullmatch(r"-e \.\[([\w,]+)\]", line)[1].split(",")
    assert set(extras) <= PROJECT["optional-dependencies"].keys()
    assert json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())["postCreateCommand"]


@pytest.mark.parametrize("template", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=place)
def test_templates_are_forms(template):
    form = yaml.safe_load(template.read_text())
    assert {"name", "description", "body"} <= form.keys()
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 2
    assert all("label" in part["attributes"] for part in form["body"] if part["type"] != "markdown")


# --- citation, changelog, addresses -----------------------------------------------------------------------------


def names(people):
    return [each.get("name") or f"{each['given-names']} {each['family-names']}" for each in people]


def test_the_citation_names_the_papers_as_their_files_do():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    found = {each["title"]: (names(each["authors"]), each.get("url", each.get("notes"))) for each in cited}
    papers = [presets.load(paper) for paper in presets.PAPERS]
    people = [re.sub(r" \(.*\)$", "", paper["authors"]).split(", ") for paper in papers]
    assert found == {paper["title"].strip(): (people[k], paper["link"]) for k, paper in enumerate(papers)}
    for paper, each in zip(papers, cited, strict=True):
        year = re.search(r"(\d{4})\)$", paper["authors"])
        assert each.get("year") == (int(year[1]) if year else None)


def test_the_package_reads_and_writes_utf8_whatever_the_locale():
    """Ruff's PLW1514 sees this only where it knows the type."""
    found = []
    for file in sorted((ROOT / "fedlab_lite").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            texts = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("read_text", "write_text")
            if texts and "encoding" not in {each.arg for each in node.keywords}:
                found.append(f"{file.name}:{node.lineno}")
    assert not found


def test_one_version_one_address_one_licence():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {fedlab_lite.__version__, str(cited["version"])} == {PROJECT["version"]}
    assert {files.URL, cited["repository-code"]} == {PROJECT["urls"]["Repository"]}
    assert all(url.startswith(files.URL) for url in PROJECT["urls"].values())
    assert cited["license"] == PROJECT["license"]
    assert names(cited["authors"]) == [each["name"] for each in PROJECT["authors"]]


def test_the_changelog_has_this_version():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert lines[0] == "# Changelog"
    heads = [line for line in lines if line.startswith("## ")]
    assert heads[0] == "## [Unreleased]"
    assert re.fullmatch(rf"## \[{re.escape(PROJECT['version'])}\] - \d{{4}}-\d\d-\d\d", heads[1])
    kinds = {line for line in lines if line.startswith("### ")}
    assert kinds <= {f"### {kind}" for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")}
