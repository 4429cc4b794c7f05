"""Errors, checks of values, files, JAX's setup, memory, text and progress.

The lowest package: it knows nothing of federated learning, and every other package may import it.
"""

from fedlab_lite.util.errors import (
    CorruptFileError,
    FedlabError,
    InputError,
    MissingDataError,
    NotStoredError,
    OutputError,
    choose,
)
from fedlab_lite.util.files import cache_dir, data_dir, sha256_of_arrays, write_atomic
from fedlab_lite.util.progress import progress_bar
