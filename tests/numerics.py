"""What decides a run's numbers, as recorded hashes of source: so that nobody changes numbers under an old name.

    python tests/numerics.py          # what has changed since it was recorded, and which committed runs a bump renames
    python tests/numerics.py --same   # I have checked that the numbers are the same: record the source as it is now

A run's name holds three versions: the engine's (`training.ENGINE`), its algorithm's and its family of networks'
(`version`, an attribute of the class). Source is compared without comments, docstrings, annotations and error messages.
"""

import argparse
import ast
import hashlib
import importlib
import inspect
import json
from pathlib import Path
from types import ModuleType

from fedlab_lite import (
    assembly,
    clients,
    deq,
    experiment,
    fusion,
    graphs,
    metrics,
    problem,
    settings,
    sharding,
    store,
    training,
)
from fedlab_lite.algorithms import ALGORITHMS
from fedlab_lite.data import capped, federated, motion, partition, roles, synthetic, text
from fedlab_lite.nn import layers, model, winograd
from fedlab_lite.nn.model import MODELS

RECORD = Path(__file__).with_name("numerics.json")
IGNORED = {"annotation", "returns", "type_params", "type_comment", "ctx", "kind"}


def normalised(node) -> object:
    """A syntax tree as nested lists: the same on every version of Python, and for source that computes the same."""
    if isinstance(node, list):
        return [normalised(each) for each in node if not isinstance(each, ast.Raise)]
    if not isinstance(node, ast.AST):
        return repr(node)
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
        value = body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            node.body = body[1:]
    parts = [(name, getattr(node, name, None)) for name in node._fields if name not in IGNORED]
    return [type(node).__name__, *([name, normalised(value)] for name, value in parts if value not in (None, []))]


def digest(modules: set[ModuleType]) -> str:
    """Hash of the source of these modules."""
    sources = {module.__name__: normalised(ast.parse(inspect.getsource(module))) for module in modules}
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()


def with_imports(module: ModuleType, package: str) -> set[ModuleType]:
    """A module and those of the same package ("fedlab_lite.nn.") that it builds on."""
    found = {module}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(package):
            found |= with_imports(importlib.import_module(node.module), package)
    return found


def engine() -> set[ModuleType]:
    folder = Path(deq.__file__).parent
    solvers = {importlib.import_module(f"fedlab_lite.deq.{file.stem}") for file in folder.glob("[a-z]*.py")}
    everything = {clients, fusion, graphs, metrics, problem, settings, sharding, training, layers, model, winograd}
    return solvers | everything | {capped, federated, motion, partition, roles, synthetic, text, assembly, experiment}


def current() -> dict[str, dict]:
    """Of the engine, each algorithm and each model: version and hash."""
    found = {"engine": {"version": training.ENGINE, "hash": digest(engine())}}
    for name, algorithm in ALGORITHMS.items():
        modules = with_imports(inspect.getmodule(algorithm), "fedlab_lite.algorithms.")
        found[f"algorithm {name}"] = {"version": algorithm.version, "hash": digest(modules)}
    for name, (module, defaults) in MODELS.items():
        modules = with_imports(inspect.getmodule(module), "fedlab_lite.nn.") - engine()
        text = digest(modules) + repr(sorted(defaults.items()))
        about = {"version": getattr(module, "version", 1), "hash": hashlib.sha256(text.encode()).hexdigest()}
        found[f"model {name}"] = about
    return found


def changed(now: dict[str, dict], recorded: dict[str, dict]) -> list[str]:
    """What decides numbers and was changed without a new version or a word."""
    return [part for part, about in recorded.items() if part in now and now[part] != about]


def committed(part: str) -> list[str]:
    """The committed runs whose numbers a part decides."""
    kind, _, name = part.partition(" ")
    files = sorted(RECORD.parent.parent.glob("figures/*/runs/*-????????????????.npz"))
    return [
        str(file.relative_to(RECORD.parent.parent))
        for file in files
        if kind == "engine" or store.load_arrays(file)[1]["about"][kind] == name
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", action="store_true", help="record: the numbers are the same, or the version is new")
    now, recorded = current(), json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if parser.parse_args().same:
        RECORD.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
        print(f"recorded in {RECORD.name}")
        return 0
    parts = changed(now, recorded)
    for part in parts:
        old, new = recorded[part]["version"], now[part]["version"]
        runs = committed(part)
        print(
            f"{part}: version {old} -> {new}, and its source has changed. A new version renames {len(runs)} committed"
        )
        print(f"  runs{': ' + ', '.join(runs[:8]) if runs else ''}; are the numbers the same? then --same")
    return int(bool(parts))


if __name__ == "__main__":
    raise SystemExit(main())
