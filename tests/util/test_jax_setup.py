"""Importing the package leaves JAX alone; `setup` changes it, but not what was chosen before."""

import json
import os
import re
import resource
import socket
import subprocess
import sys
import zlib

import pytest

import fedlab_lite
from fedlab_lite.papers import Item, notebooks
from fedlab_lite.util import InputError, files, jax_setup

CORES = jax_setup._cores()


def python(code: str, wait: bool = True, **environment: str):
    """What a fresh process gives `show`; with `wait=False` the process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    code = f"import json\ndef show(*values): print('shown', json.dumps(values))\n{code}"
    process = subprocess.Popen([sys.executable, "-c", code], env=clean | environment, stdout=subprocess.PIPE, text=True)
    return shown(process) if wait else process


def shown(process: subprocess.Popen) -> list:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(re.search("^shown (.*)$", out, re.MULTILINE)[1])


@pytest.mark.slow
def test_importing_everything_changes_nothing_in_jax():
    seen = python("""
import importlib, pkgutil, sys
import fedlab_lite
lazy = "jax" not in sys.modules
import jax
before = dict(jax.config.values)
for module in pkgutil.walk_packages(fedlab_lite.__path__, "fedlab_lite."):
    importlib.import_module(module.name)
changed = [name for name in before if jax.config.values[name] != before[name]]
jax.config.update("jax_num_cpu_devices", 3)  # JAX would refuse had it started
show(lazy, changed, jax.device_count())
""")
    assert seen == [True, [], 3]


STATE = """
import jax
state = [jax.config.jax_num_cpu_devices, jax.config.jax_compilation_cache_dir,
         jax.config.jax_persistent_cache_min_compile_time_secs, jax.device_count()]
show(*state, *said)
"""


@pytest.mark.slow
def test_setup_makes_one_device_a_core_and_keeps_programs(tmp_path):
    code = f"from fedlab_lite import setup\nsaid = [setup(), setup()]{STATE}"
    *state, first, again = python(code, FEDLAB_CACHE=str(tmp_path))
    assert state == [CORES, str(tmp_path / "xla"), 0.1, CORES]
    kept = f"compiled programs kept in {tmp_path / 'xla'}"
    assert first == again == f"JAX: {CORES} CPU devices, precision float32, {kept}"


@pytest.mark.slow
def test_what_was_chosen_in_jax_stays():
    code = """
import jax
jax.config.update("jax_num_cpu_devices", 3)
jax.config.update("jax_compilation_cache_dir", "here")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 7.0)
from fedlab_lite import setup
"""
    assert python(f"{code}said = [setup()]{STATE}") == [
        3,
        "here",
        7.0,
        3,
        "JAX: 3 CPU devices, precision float32, compiled programs kept in here",
    ]
    assert python(f"{code}said = [setup(devices=2, cache='there')]{STATE}")[:4] == [2, "there", 7.0, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "state"),
    [
        ({"JAX_NUM_CPU_DEVICES": "3"}, [3, None, 1.0, 3]),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, [-1, None, 1.0, 3]),
        ({"JAX_COMPILATION_CACHE_DIR": "here"}, [CORES, "here", 0.1, CORES]),
        ({"JAX_COMPILATION_CACHE_DIR": "here", "JAX_ENABLE_COMPILATION_CACHE": "0"}, [CORES, "here", 1.0, CORES]),
        (
            {"JAX_COMPILATION_CACHE_DIR": "here", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1.0"},
            [CORES, "here", 1.0, CORES],
        ),
    ],
)
def test_what_was_chosen_in_the_environment_stays(environment, state):
    cache = "JAX_COMPILATION_CACHE_DIR" in environment
    *seen, said = python(f"from fedlab_lite import setup\nsaid = [setup(cache={cache})]{STATE}", **environment)
    assert seen == state
    assert ("not kept" in said) == (not cache or "JAX_ENABLE_COMPILATION_CACHE" in environment)


COMPILES = """
import warnings
from fedlab_lite import setup
setup()
import jax
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    value = float(jax.jit(lambda x: x * 2 + 1)(3.0))
show(value, [str(each.message) for each in caught])
"""


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "empty", "flipped"])
def test_a_damaged_program_is_removed_and_compiled_again(tmp_path, damage):
    assert python(COMPILES, FEDLAB_CACHE=str(tmp_path)) == [7.0, []]
    (file,) = tmp_path.glob("xla/jit__lambda*")
    whole = file.read_bytes()
    if damage == "flipped" and whole[:1] != b"x":
        pytest.skip("zstandard, as JAX calls it, writes no checksum")
    other = {"cut": whole[:90], "empty": b"", "flipped": whole[:90] + bytes([whole[90] ^ 1]) + whole[91:]}
    file.write_bytes(other[damage])
    for _ in range(2):
        assert python(COMPILES, FEDLAB_CACHE=str(tmp_path)) == [7.0, []]
    assert file.stat().st_size > 90
    assert not jax_setup._damaged(file.read_bytes())


def test_a_cache_that_cannot_be_written_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    value, (line,) = python(COMPILES, FEDLAB_CACHE=str(tmp_path / "file"))
    assert value == 7.0
    assert "compilation cache" in line


def test_what_is_removed_from_the_cache(tmp_path):
    program = zlib.compress(b"program")
    contents = {"jit_a-cache": program, "jit_b-cache": program[:-1], "jit_c-cache": b"another form", "d": program[:-1]}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    jax_setup.remove_damaged(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"jit_a-cache", "jit_c-cache", "d", ".checked"}
    old = tmp_path / "jit_a-cache"
    old.write_bytes(b"x")
    os.utime(old, (1, 1))  # from before the last check
    jax_setup.remove_damaged(tmp_path)
    assert old.exists()
    jax_setup.remove_damaged(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_a_zstandard_program(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    program = zstandard.ZstdCompressor().compress(b"program")
    (tmp_path / "jit_a-cache").write_bytes(program)
    (tmp_path / "jit_b-cache").write_bytes(program[:-1])
    jax_setup.remove_damaged(tmp_path)
    assert [file.name for file in tmp_path.glob("jit*")] == ["jit_a-cache"]


@pytest.mark.slow
def test_setup_after_jax_has_started_does_no_harm():
    code = f"import jax\njax.devices()\nfrom fedlab_lite import setup\nsaid = [setup(devices=3)]{STATE}"
    *state, said = python(code, JAX_NUM_CPU_DEVICES="2")
    assert state[3] == 2
    started = "JAX: already started with 2 devices, which cannot change"
    assert said.startswith(f"{started}, precision float32, compiled programs kept in ")


@pytest.mark.slow
def test_processes_compute_together():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    code = """
from fedlab_lite import setup
said = [setup(devices=2, cache=False), setup()[-14:]]
import jax, numpy as np
from jax.experimental.multihost_utils import process_allgather
show(*said, jax.device_count(), process_allgather(np.array(jax.process_index() + 1)).tolist())
"""
    group = {"FEDLAB_COORDINATOR": address, "FEDLAB_NUM_PROCESSES": "2"}
    processes = [python(code, wait=False, **group, FEDLAB_PROCESS_ID=str(index)) for index in range(2)]
    for index, process in enumerate(processes):
        said = f"process {index} of 2"
        first = f"JAX: 2 CPU devices, precision float32, compiled programs not kept, {said}"
        assert shown(process) == [first, said, 4, [1, 2]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"devices": 0}, "devices = 0: must be at least 1, or None"),
        ({"coordinator": "host:1"}, "set FEDLAB_NUM_PROCESSES and FEDLAB_PROCESS_ID too"),
        *(
            ({"coordinator": address, "num_processes": 2, "process_id": 0}, "address is .*; use host:port, such as")
            for address in ("host", "", ":1", "host:", "host:x", "host:0", "host:65536", "http://host:1", "a b:1")
        ),
        (
            {"coordinator": "host:1", "num_processes": 2, "process_id": 2},
            "process 2 of 2 does not exist; use 0 to 1",
        ),
        (
            {"coordinator": "host:1", "num_processes": 2, "process_id": 0},
            "call setup\\(\\) before JAX computes",
        ),
    ],
)
def test_what_is_refused(values, message):
    import jax

    jax.devices()
    with pytest.raises(InputError, match=message):
        fedlab_lite.setup(**values)


def test_programs_are_kept_on_this_machine(monkeypatch):
    import jax

    before = jax.config.jax_compilation_cache_dir
    try:
        with pytest.raises(InputError, match="JAX_COMPILATION_CACHE_DIR is gs://bucket/xla, but compiled programs"):
            fedlab_lite.setup(cache="gs://bucket/xla")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_coordinator_with_a_number_listens_there_alone():
    numbers = ("127.0.0.1:1", "[::1]:2", "localhost:3")
    assert [jax_setup._listens(each) for each in (*numbers, "host:1")] == [*numbers, None]


def test_processes_that_do_not_meet_end_with_a_line():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    group = {"FEDLAB_COORDINATOR": address, "FEDLAB_NUM_PROCESSES": "2", "FEDLAB_PROCESS_ID": "1"}
    command = [sys.executable, "-c", "import fedlab_lite; fedlab_lite.setup()"]
    environment = os.environ | group | {"FEDLAB_JOIN_SECONDS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"error: not all of 2 processes met at {address} within 1 s (FEDLAB_JOIN_SECONDS)\n"


def test_one_of_several_that_is_left_alone_ends_with_a_line(monkeypatch, capsys):
    import jax

    def lost():
        with jax_setup.together():
            raise jax.errors.JaxRuntimeError("Gloo failed\nat length")

    with pytest.raises(jax.errors.JaxRuntimeError):  # of one process it is an error
        lost()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="2"):
        lost()
    assert "can no longer compute together (Gloo failed); start all of them again" in capsys.readouterr().err


def test_the_environment_names_all_three(monkeypatch):
    monkeypatch.setenv("FEDLAB_PROCESS_ID", "first")
    with pytest.raises(InputError, match="set FEDLAB_COORDINATOR and FEDLAB_NUM_PROCESSES too"):
        fedlab_lite.setup()
    with pytest.raises(InputError, match="whole numbers, not"):
        fedlab_lite.setup(coordinator="host:1", num_processes=2)


def test_computing_sets_up(monkeypatch):
    """The command line and Dask's workers begin here."""
    calls = []
    monkeypatch.setattr(notebooks, "setup", lambda: calls.append("setup"))
    monkeypatch.setattr(notebooks.runner, "run_all", lambda *args, **options: calls.append("run"))
    notebooks.compute(Item("fedeq", "fig04_mlp_vs_deq_mlp"), "quick", {})
    assert calls == ["setup", "run"]


@pytest.mark.parametrize("file", sorted(files.notebooks_dir().glob("*/*.ipynb")), ids=lambda file: file.stem)
def test_every_notebook_sets_up_first(file):
    code = [notebooks.source(cell) for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    parameters, imports, *_ = code
    assert not re.search(r"^(import|from) ", parameters, re.MULTILINE)
    assert re.search(r"^import fedlab_lite as fl$", imports, re.MULTILINE)
    first, second, *_ = (line for line in imports.splitlines() if line and not re.match("(import|from) ", line))
    assert (first, second) == ("fl.setup()", "fl.check_parameters(globals())")


def test_too_few_addresses_are_refused_before_JAX_aborts(monkeypatch):
    """JAX's C++ would end the process without an error of Python."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (3 * 2**29, -1))
    with pytest.raises(InputError, match=r"may map 1\.5 GiB .* up to 3\.0 GiB; raise `ulimit -v`"):
        jax_setup.start()
