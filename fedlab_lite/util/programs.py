"""Compiled programs on disk, each behind its checksum: a damaged one is removed, said once, and compiled again.

JAX's own cache writes in place and without a checksum, so that a full disk or two writers leave an entry which costs a
cryptic warning and a compilation in every process from then on. This one stands in its place where JAX lets it.
"""

import contextlib
import hashlib
import warnings
from pathlib import Path
from typing import Any

from fedlab_lite.util.errors import OutputError
from fedlab_lite.util.files import write_atomic

DIGEST = hashlib.sha256().digest_size


class Programs:
    """What JAX asks of a cache: `get` and `put` of bytes by key; `path`: the folder, with a file `<key>.xla` each."""

    def __init__(self, path: str | Path):
        self.path = self._path = Path(path)
        self.writes = True

    def get(self, key: str) -> bytes | None:
        """The program, None where there is none that is whole.

        >>> import tempfile
        >>> programs = Programs(tempfile.mkdtemp())
        >>> programs.put("a", b"program"), programs.get("a"), programs.get("b")
        (None, b'program', None)
        """
        file = self.path / f"{key}.xla"
        try:
            content = file.read_bytes()
        except OSError:
            return None
        digest, program = content[:DIGEST], content[DIGEST:]
        if digest == hashlib.sha256(program).digest():
            return program
        with contextlib.suppress(OSError):
            file.unlink()
        warnings.warn(f"{file} was damaged; it is removed, and the program compiled again", stacklevel=2)
        return None

    def put(self, key: str, value: bytes) -> None:
        """Keep a program. Where the folder cannot be written, nothing is kept from then on, and one warning says so."""
        if not self.writes:
            return
        try:
            write_atomic(self.path / f"{key}.xla", hashlib.sha256(value).digest() + value)
        except OutputError as error:
            self.writes = False
            warnings.warn(f"compiled programs are not kept: {error}", stacklevel=2)


def install() -> None:
    """Make JAX keep its programs here; a cache that it has opened already, or one with a maximal size, stays."""
    import jax

    try:
        from jax._src import compilation_cache
    except ImportError:  # a JAX that keeps its cache elsewhere, and uses its own
        return

    def opened(path: str) -> Any:
        return Programs(path), path

    if jax.config.jax_compilation_cache_max_size == -1 and hasattr(compilation_cache, "get_file_cache"):
        compilation_cache.get_file_cache = opened
