"""A disk cache of compiled programs with checksums: a damaged entry is removed with one warning and compiled again.

JAX's own cache writes in place and without a checksum. A full disk or two simultaneous writers can leave a damaged
entry. From then on every process prints a cryptic warning and compiles again. This cache replaces JAX's own where JAX
allows it.
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
    """The cache that JAX calls: `get` and `put` bytes by key, one file `<key>.xla` per program in the folder `path`."""

    def __init__(self, path: str | Path):
        self.path = self._path = Path(path)
        self.writes = True

    def get(self, key: str) -> bytes | None:
        """The program stored under `key`, or None if there is no undamaged one.

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
        """Store a program; after the first failed write, warn once and store nothing more."""
        if not self.writes:
            return
        try:
            write_atomic(self.path / f"{key}.xla", hashlib.sha256(value).digest() + value)
        except OutputError as error:
            self.writes = False
            warnings.warn(f"compiled programs are not kept: {error}", stacklevel=2)


def install() -> None:
    """Make JAX use this cache, unless JAX has already opened one or its cache has a maximal size."""
    import jax

    try:
        from jax._src import compilation_cache
    except ImportError:  # this version of JAX has its cache in another module, and keeps using it
        return

    def opened(path: str) -> Any:
        return Programs(path), path

    if jax.config.jax_compilation_cache_max_size == -1 and hasattr(compilation_cache, "get_file_cache"):
        compilation_cache.get_file_cache = opened
