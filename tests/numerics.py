"""The guard of stored numbers: which source decides a run's numbers, and whether it is still the recorded one.

    python tests/numerics.py          # what has changed, and exactly which committed runs a new version would rename
    python tests/numerics.py --same   # the numbers are the same, or the version is new: record the source as it is

A run's name holds three versions: the engine's (`ENGINE`), its algorithm's and its family of networks' (`version`, an
attribute of the class). What they stand for is found from the code: the closure of definitions that a round, an
algorithm or a network reaches by name, across imports. Definitions are compared by their syntax trees, without
docstrings, comments, annotations, error messages and checks that only raise. Their files do not count, nor does a new
entry of a register (a dictionary from names to functions or classes): it can change no number of the entries before it.
"""

import argparse
import ast
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

RECORD = Path(__file__).with_name("numerics.json")
ROOT = RECORD.parent.parent
ENGINE = ("advance", "place_problem", "build_problem")  # training by rounds, and what a run is put together from
INPUT = "Settings"  # what a run's name is made of, without defaults: these and `__post_init__` decide numbers
DATA = "federated"  # a run's name has a fingerprint of its rows, so these need no version
PARTS = {"algorithm": "ALGORITHMS", "model": "MODELS"}  # registers whose entries have versions of their own
RULES = ("ranged", "one_of")  # a field's default is their first argument
IGNORED = {"annotation", "returns", "type_params", "type_comment", "ctx", "kind"}
CHECKS = ("check", "_check", "choose")  # functions that return nothing and raise where input cannot be used

Place = tuple[str, str]  # module, definition


@dataclass
class Source:
    """What one module defines and imports at its top level."""

    definitions: dict[str, list[ast.AST]] = field(default_factory=lambda: defaultdict(list))
    imports: dict[str, Place] = field(default_factory=dict)  # local name -> module, name ('': the module itself)


def _is_check(node: ast.AST) -> bool:
    """Whether a statement can only raise: `raise`, an `if` around it, a call of a function of `CHECKS`."""
    if isinstance(node, ast.Raise):
        return True
    if isinstance(node, ast.If):
        return not node.orelse and all(map(_is_check, node.body))
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    called = node.value.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name.startswith(CHECKS)


def _statements(body: list) -> list:
    """A body without its docstring and checks."""
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        body = body[1:]
    return [node for node in body if not _is_check(node)]


def normalised(node: object) -> object:
    """A syntax tree as nested lists: the same on every version of Python, and for source that computes the same."""
    if isinstance(node, list):
        if node and isinstance(node[0], ast.stmt):
            node = _statements(node)
        return [normalised(each) for each in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = [(name, getattr(node, name, None)) for name in node._fields if name not in IGNORED]
    return [type(node).__name__, *([name, normalised(value)] for name, value in parts if value not in (None, []))]


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below a node that may decide a number; annotations too, because they say whose methods are called."""
    yield node
    for _, value in ast.iter_fields(node):
        values = value if isinstance(value, list) else [value]
        for each in _statements(values) if values and isinstance(values[0], ast.stmt) else values:
            if isinstance(each, ast.AST):
                yield from _children(each)


@cache
def _read(text: str) -> Source:
    """The definitions and imports of a source text."""
    tree, found = ast.parse(text), Source()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found.imports |= {each.asname or each.name: (node.module, each.name) for each in node.names}
        elif isinstance(node, ast.Import):
            found.imports |= {each.asname: (each.name, "") for each in node.names if each.asname}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.definitions[node.name].append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)):
                found.definitions[name].append(node)
    for node in tree.body:  # a call such as `register_pytree_node(Channel, ...)` belongs to what it registers
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
            owner = next((name for name in names if name in found.definitions), None)
            if owner:
                found.definitions[owner].append(node)
    return found


@cache
def _text(node: ast.AST) -> bytes:
    return json.dumps(normalised(node), sort_keys=True).encode()


class Package:
    """The definitions of a package, as the files in its folder have them: nothing is imported."""

    def __init__(self, folder: Path):
        self.modules: dict[str, Source] = {}
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.modules[name] = _read(file.read_text())

    def place(self, module: str, name: str) -> Place | None:
        """Where a name that a module uses is defined; ('package.module', '') for a module, None outside the package."""
        source = self.modules.get(module)
        if source is None:
            return None
        if name in source.definitions:
            return module, name
        if name in source.imports:
            target, wanted = source.imports[name]
            if not wanted:
                return (target, "") if target in self.modules else None
            inside = None if (target, wanted) == (module, name) else self.place(target, wanted)
            return inside or ((f"{target}.{wanted}", "") if f"{target}.{wanted}" in self.modules else None)
        return (f"{module}.{name}", "") if f"{module}.{name}" in self.modules else None

    def find(self, name: str) -> Place:
        """The one place that defines a name."""
        places = [(module, name) for module, source in self.modules.items() if name in source.definitions]
        if len(places) != 1:
            raise LookupError(f"{name} is defined in {[module for module, _ in places] or 'no module'}, not in one")
        return places[0]

    def _references(self, module: str, node: ast.AST) -> Iterator[Place]:
        for each in _children(node):
            if isinstance(each, ast.Name):
                place = self.place(module, each.id)
            elif isinstance(each, ast.Attribute):
                chain, root = [each.attr], each.value
                while isinstance(root, ast.Attribute):
                    chain, root = [root.attr, *chain], root.value
                place = self.place(module, root.id) if isinstance(root, ast.Name) else None
                while place and not place[1] and chain:
                    place = self.place(place[0], chain.pop(0))
            else:
                continue
            if place and place[1]:
                yield place

    def register(self, place: Place) -> dict[str, ast.AST] | None:
        """The entries of a dictionary from text to functions or classes of the package; None for all else."""
        module, name = place
        nodes = self.modules[module].definitions[name]
        value = getattr(nodes[0], "value", None)
        if len(nodes) != 1 or not isinstance(value, ast.Dict) or not value.keys:
            return None
        if not all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in value.keys):
            return None
        callables = (ast.FunctionDef, ast.ClassDef)
        for place in self._references(module, value):
            if isinstance(self.modules[place[0]].definitions[place[1]][0], callables):
                return dict(zip((key.value for key in value.keys), value.values, strict=True))
        return None

    def closure(self, roots: Iterable[tuple[str, str, ast.AST]], without: set[Place]) -> dict[tuple[str, str], str]:
        """Hashes of all definitions that `roots` (module, name, node) reach by name, by module and name."""
        hashes: dict[tuple[str, str], str] = {}
        waiting = list(roots)
        seen: set[Place] = set(without)
        while waiting:
            module, name, node = waiting.pop()
            text = _text(node)
            before = hashes.get((module, name), "")
            hashes[module, name] = hashlib.sha256(before.encode() + text).hexdigest()[:16]
            for place in self._references(module, node):
                if place not in seen:
                    seen.add(place)
                    waiting += self.nodes(place)
        return hashes

    def nodes(self, place: Place) -> list[tuple[str, str, ast.AST]]:
        """A definition as roots for `closure`: a register as its entries."""
        module, name = place
        entries = self.register(place)
        if entries is not None:
            return [(module, f"{name}[{key!r}]", node) for key, node in entries.items()]
        return [(module, name, node) for node in reversed(self.modules[module].definitions[name])]

    def defaults(self, place: Place) -> dict[tuple[str, str], str]:
        """Hashes of a record's defaults, without their ranges, and of what it does with the values that it is given."""
        module, name = place
        hashes = {}
        for node in self.modules[module].definitions[name][0].body:
            if isinstance(node, ast.AnnAssign) and node.value:
                by_rule = isinstance(node.value, ast.Call) and node.value.func.id in RULES
                hashes[module, f"{name}.{node.target.id}"] = node.value.args[0] if by_rule else node.value
            elif isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
                hashes[module, f"{name}.{node.name}"] = node
        return {key: hashlib.sha256(_text(node)).hexdigest()[:16] for key, node in hashes.items()}

    @cached_property
    def parts(self) -> dict[str, dict[tuple[str, str], str]]:
        """Of the engine, the data, each algorithm and each model: the definitions that decide its numbers."""
        registers = {kind: self.find(name) for kind, name in PARTS.items()}
        without = {*registers.values(), self.find(INPUT)}
        data = self.closure(self.nodes(self.find(DATA)), without)
        engine = self.closure([node for name in ENGINE for node in self.nodes(self.find(name))], without)
        found = {"data": data, "engine": {key: value for key, value in engine.items() if key not in data}}
        found["engine"] |= self.defaults(self.find(INPUT))
        for kind, place in registers.items():
            for name, node in self.register(place).items():
                inside = self.closure([(place[0], f"{place[1]}[{name!r}]", node)], without)
                found[f"{kind} {name}"] = {key: value for key, value in inside.items() if key not in engine | data}
        return found

    def record(self) -> dict[str, dict[str, str]]:
        """The parts as they are recorded: definitions by name, wherever their files lie."""
        result = {}
        for part, definitions in self.parts.items():
            names = defaultdict(list)
            for (_, name), digest in definitions.items():
                names[name].append(digest)
            result[part] = {name: " ".join(sorted(digests)) for name, digests in sorted(names.items())}
        return result


def changed(now: dict[str, dict[str, str]], recorded: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """By part, the recorded definitions that have changed or are gone. New ones alone change no number."""
    found = {
        part: [name for name, digest in definitions.items() if now.get(part, {}).get(name) != digest]
        for part, definitions in recorded.items()
        if part in now
    }
    return {part: names for part, names in found.items() if names}


def committed(part: str) -> list[str]:
    """The committed runs that a new version of a part renames, as files."""
    from fedlab_lite.runs import store

    kind, _, name = part.partition(" ")
    if kind == "data":
        return []
    files = sorted(ROOT.glob("figures/*/runs/*-????????????????.npz"))
    return [
        str(file.relative_to(ROOT))
        for file in files
        if kind == "engine" or store.load_arrays(file)[1]["about"][kind] == name
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", action="store_true", help="record: the numbers are the same, or the version is new")
    parser.add_argument("--all", action="store_true", help="name every run that would be renamed, not the first five")
    args = parser.parse_args()
    now = Package(ROOT / "fedlab_lite").record()
    if args.same:
        RECORD.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
        print(f"recorded in {RECORD.name}")
        return 0
    recorded = json.loads(RECORD.read_text())
    parts = changed(now, recorded)
    for part, names in parts.items():
        runs = committed(part)
        print(f"{part}: {', '.join(names)} changed.")
        if part == "data":
            print("  No version to raise: a run's name has a fingerprint of its rows.")
        else:
            shown = runs if args.all else runs[:5]
            print(f"  A new version renames {len(runs)} committed runs{':' if runs else '.'}", *shown, sep="\n    ")
            if len(runs) > len(shown):
                print(f"    and {len(runs) - len(shown)} more; --all names them")
    if parts:
        print("Are the numbers the same? Then: python tests/numerics.py --same")
    new = now.keys() - recorded.keys()
    if new:
        print(f"new: {', '.join(sorted(new))}. Record it: python tests/numerics.py --same")
    return int(bool(parts or new))


if __name__ == "__main__":
    raise SystemExit(main())
