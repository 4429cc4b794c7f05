"""JAX on this machine: its setup, and a description of what computes. Importing this file loads JAX."""

import contextlib
import importlib
import ipaddress
import os
import platform
import re
import resource
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import fedlab_lite
from fedlab_lite.util import InputError, cache_dir, choose
from fedlab_lite.util.text import say

# Our names: JAX's. Its 'bfloat16' is the device's default, which on a GPU is TF32 for factors in float32.
PRECISIONS = {"float32": "highest", "tf32": "tensorfloat32", "bfloat16": "BF16_BF16_F32"}
WANTED = {  # of JAX' configuration where runs are computed, by the reason
    "under which the algorithms cannot compute": {
        "jax_numpy_dtype_promotion": ("standard",),
        "jax_transfer_guard": (None, "allow", "log"),
    },
    "which changes the numbers of a run, and not its name": {
        "jax_enable_x64": (False,),
        "jax_threefry_partitionable": (True,),
        "jax_default_prng_impl": ("threefry2x32",),
        "jax_random_seed_offset": (0,),
    },
}
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")  # of a coordinator: host:port
ADDRESSES = 3 << 30  # bytes of address space that JAX maps; it uses a fraction
FORMS = {b"x": ("zlib",), b"(": ("compression.zstd", "zstandard")}  # first byte of a compiled program: who reads it


def setup(
    *,
    devices: int | None = None,
    cache: bool | str | Path = True,
    precision: str | None = None,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> str:
    """Set up JAX for many small steps and return one line about its state; call it before JAX computes.

    Earlier choices, by JAX's environment variables or `jax.config.update`, stay. Another call, or a call after JAX has
    started its devices, does no harm.

    Args:
      devices: CPU devices of this process; None: one per core, because small steps take twice as long when XLA hands
        them between threads.
      cache: whether compiled programs are kept for the next process, in `$FEDLAB_CACHE/xla`; or the folder for them.
        Files there that were only partly written are removed, see `remove_damaged`.
      precision: of matrix products and convolutions outside stored runs, which have their own (`Settings.precision`).
        'float32'; 'tf32' rounds their factors to 10 bits and is faster on a GPU; 'bfloat16' rounds to 7 bits. A CPU
        computes in float32 anyway. None: 'float32', unless JAX was told otherwise.
      coordinator, num_processes, process_id: address (`host:port`) of process 0, how many processes compute together
        and which this one is; None: FEDLAB_COORDINATOR, FEDLAB_NUM_PROCESSES and FEDLAB_PROCESS_ID if they are set.
        A process waits for the others for FEDLAB_JOIN_SECONDS, by default 300, and then ends.

    Raises: `InputError` for numbers out of range, where processes start too late, and where only some of the three
      are given.

    >>> setup()[:5]
    'JAX: '
    """
    config, said, flags = jax.config, [], os.environ.get("XLA_FLAGS", "")
    if devices is not None and devices < 1:
        raise InputError(f"devices = {devices}: must be at least 1, or None for one per core")
    group = _group(coordinator, num_processes, process_id)
    if group and not jax.distributed.is_initialized():
        try:
            with _in_time(group) as seconds:
                address = _listens(group[0])
                jax.distributed.initialize(*group, coordinator_bind_address=address, initialization_timeout=seconds)
        except RuntimeError as error:
            raise InputError(f"processes could not connect ({error}); call setup() before JAX computes") from error
    chosen = config.jax_num_cpu_devices != -1 or "host_platform_device_count" in flags
    try:
        if devices or not chosen:
            config.update("jax_num_cpu_devices", devices or _cores())
        count = config.jax_num_cpu_devices
        said.append("CPU devices as set in XLA_FLAGS" if count == -1 else f"{count} CPU devices")
    except RuntimeError:
        said.append(f"already started with {jax.local_device_count()} devices, which cannot change")
    if cache is not False and (cache is not True or config.jax_compilation_cache_dir is None):
        config.update("jax_compilation_cache_dir", str(cache_dir() / "xla" if cache is True else cache))
    choose("precision", precision or "float32", PRECISIONS)
    if precision or config.jax_default_matmul_precision is None:
        config.update("jax_default_matmul_precision", PRECISIONS[precision or "float32"])
    said.append(f"precision {precision_here()}")
    folder = config.jax_enable_compilation_cache and config.jax_compilation_cache_dir
    if folder and "://" in folder:
        words = "compiled programs are kept in a folder of this machine"
        raise InputError(f"JAX_COMPILATION_CACHE_DIR is {folder}, but {words}; set it to one, or leave it unset")
    if folder:
        remove_damaged(Path(folder))
    seconds = "jax_persistent_cache_min_compile_time_secs"
    if folder and seconds.upper() not in os.environ and getattr(config, seconds) == 1.0:  # JAX's default
        config.update(seconds, 0.1)
    said.append(f"compiled programs kept in {folder}" if folder else "compiled programs not kept")
    if group:
        said.append(f"process {group[2]} of {group[1]}")
    return f"JAX: {', '.join(said)}"


def start() -> None:
    """Start JAX's devices, if it has not. Raises `InputError` where its configuration does not let us compute."""
    for why, wanted in WANTED.items():
        for name, values in wanted.items():
            if (value := getattr(jax.config, name)) not in values:
                raise InputError(f"{name.upper()} is {value!r}, {why}; leave it unset")
    if 0 <= (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) < ADDRESSES:
        size, most = (f"{count / 2**30:.1f} GiB" for count in (limit, ADDRESSES))
        raise InputError(f"this process may map {size} of memory, and JAX maps up to {most}; raise `ulimit -v`")
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX' own check of CUDA is an assertion
        names = ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "CUDA_VISIBLE_DEVICES", "XLA_FLAGS")
        said = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ) or "no variable set"
        why = str(error).partition("\n")[0] or "no such device"
        raise InputError(f"JAX cannot start its devices with {said} ({why}); correct or unset them") from error


def remove_damaged(folder: Path) -> None:
    """Remove compiled programs that a kill or a full disk left damaged, among the files since the last check.

    JAX neither repairs nor overwrites such a file: every process would warn and compile the program again. The stamp
    `.checked` in the folder makes the next check cheap. A file of unknown form stays.
    """
    stamp = folder / ".checked"
    try:
        since = stamp.stat().st_mtime if stamp.exists() else 0.0
        stamp.touch()
    except OSError:  # no such folder yet, or one that cannot be written
        return
    for file in folder.glob("jit_*-cache"):
        with contextlib.suppress(OSError):  # another process may have removed it
            if file.stat().st_mtime >= since and _damaged(file.read_bytes()):
                file.unlink()


def _damaged(content: bytes) -> bool:
    """Whether a compiled program cannot be decompressed; False where the first byte is of no form in `FORMS`."""
    for module in FORMS.get(content[:1], ()):
        try:
            importlib.import_module(module).decompress(content)
        except ImportError:
            continue
        except Exception:  # each module has an error of its own
            return True
        return False
    return not content


def precision_here() -> str:
    """The precision of matrix products at present; a setting of JAX that has no name of ours keeps JAX's."""
    chosen = jax.config.jax_default_matmul_precision
    if chosen in (None, "default", "bfloat16"):
        return "float32" if jax.default_backend() == "cpu" else "tf32"  # a GPU's default since Ampere
    return {"float32": "float32", **{theirs: ours for ours, theirs in PRECISIONS.items()}}.get(chosen, chosen)


def describe_machine() -> dict[str, Any]:
    """A dictionary of 'device' (a description), 'precision', and 'versions' (of the libraries that compute)."""
    names = ("jax", "flax", "optax", "numpy")
    versions = {name: importlib.import_module(name).__version__ for name in names}
    versions |= {"python": platform.python_version(), "fedlab_lite": fedlab_lite.__version__}
    device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    return {"device": device, "precision": precision_here(), "versions": versions}


def joined(machines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The descriptions of all that had a part in one result, as one; each different value is listed.

    >>> joined([{"device": "1 x cpu", "versions": {"jax": "1"}}, {"device": "1 x H200", "versions": {"jax": "1"}}])
    {'device': '1 x H200, 1 x cpu', 'versions': {'jax': '1'}}
    """

    def all_of(found: list) -> Any:
        if isinstance(found[0], Mapping):
            return joined(found)
        return ", ".join(sorted({value for each in found for value in each.split(", ")}))

    names = dict.fromkeys(name for machine in machines for name in machine)
    return {name: all_of([machine[name] for machine in machines if name in machine]) for name in names}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _group(*given) -> tuple[str, int, int] | None:
    """The (coordinator, num_processes, process_id) from the arguments or the environment; None for a single process."""
    names = ("FEDLAB_COORDINATOR", "FEDLAB_NUM_PROCESSES", "FEDLAB_PROCESS_ID")
    values = [os.environ.get(name) if value is None else value for name, value in zip(names, given, strict=True)]
    if all(value is None for value in values):
        return None
    missing = [name for name, value in zip(names, values, strict=True) if value is None]
    if missing:
        raise InputError(f"several processes need all three of {', '.join(names)}; set {' and '.join(missing)} too")
    try:
        coordinator, num_processes, process_id = str(values[0]), int(values[1]), int(values[2])
    except ValueError as error:
        raise InputError(f"num_processes and process_id must be whole numbers, not {values[1:]}") from error
    if not _ADDRESS.fullmatch(coordinator) or int(coordinator.rpartition(":")[2]) not in range(1, 65536):
        raise InputError(f"the coordinator's address is {coordinator!r}; use host:port, such as host0:1234")
    if not 0 <= process_id < num_processes:
        raise InputError(f"process {process_id} of {num_processes} does not exist; use 0 to {num_processes - 1}")
    return coordinator, num_processes, process_id


@contextlib.contextmanager
def _in_time(group: tuple[str, int, int]) -> Iterator[int]:
    """End this process with one line where the others do not come in time; JAX would end it with a stack dump, later.

    Yields JAX' own deadline, in seconds.
    """
    seconds = os.environ.get("FEDLAB_JOIN_SECONDS", "300")
    if not seconds.isdecimal():
        raise InputError(f"FEDLAB_JOIN_SECONDS is {seconds!r}; set whole seconds")
    said = f"error: not all of {group[1]} processes met at {group[0]} within {seconds} s (FEDLAB_JOIN_SECONDS)\n"

    def end() -> None:
        os.write(2, said.encode())
        os._exit(2)

    timer = threading.Timer(int(seconds), end)
    timer.daemon = True
    timer.start()
    try:
        yield int(seconds) + 60
    finally:
        timer.cancel()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """End this process with one line where another of its group has ended; alone, nothing happens.

    JAX would wait for the other for 100 seconds at the end of Python, and then end this one with a stack dump.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        why = str(error).partition("\n")[0]
        words = "start all of them again: a run continues from its last checkpoint"
        say(f"error: the processes can no longer compute together ({why}); {words}", error=True)
        os._exit(2)


def _listens(coordinator: str) -> str | None:
    """Where the coordinator listens: at its own address where that is given as a number, else at all of its machine's.

    A name is not enough: on its own machine it often means the loopback address, which others cannot reach.
    """
    host = coordinator.rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return None
    return coordinator
