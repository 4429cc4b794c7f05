"""Federated learning with deep equilibrium models, personalisation and decentralised ADMM.

Importing the package, before JAX has started its backend, makes one host device for each CPU core, because
small steps lose half their speed when XLA hands them between threads (set JAX_NUM_CPU_DEVICES to choose another
number), and keeps compiled programs in `$FEDLAB_CACHE/xla` (set JAX_COMPILATION_CACHE_DIR to move it,
JAX_ENABLE_COMPILATION_CACHE=0 to do without).
"""

import os

import jax

from fedlab_lite.files import cache_dir

__version__ = "0.1.0"


def _configure_jax() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags = os.environ.get("XLA_FLAGS", "")
    if "JAX_NUM_CPU_DEVICES" not in os.environ and "host_platform_device_count" not in flags:
        try:
            jax.config.update("jax_num_cpu_devices", cores)
        except RuntimeError:  # JAX has already started: its devices stay as they are
            return
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


_configure_jax()
