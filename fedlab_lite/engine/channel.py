"""The channel: what happens to a message between client and server, or over a link of a graph, and its size in bytes.

Every algorithm's messages pass `Problem.uplink`, `downlink` or `transmit`. These hand them to the problem's channel and
count the bytes of the trees that pass.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.util import InputError
from fedlab_lite.util.fields import check_fields, ranged

_counts: ContextVar[tuple[dict[str, int], bool] | None] = ContextVar("counts", default=None)


@dataclass(frozen=True)
class Channel:
    """Clips a message and then adds noise; both are optional.

    A channel is a pytree. Its numbers are data of a compiled round. Only which of them are set is structure.

    Raises `InputError` for numbers out of range.

    Example:
      >>> channel = Channel(clip=1.0)
      >>> [round(w, 3) for w in channel({"w": jnp.array([3.0, 4.0])}, jax.random.key(0))["w"].tolist()]
      [0.6, 0.8]
    """

    clip: float | None = ranged(None, 0, above=True)  # C: a message of a larger L2 norm is scaled to this one
    noise: float | None = ranged(None, 0)  # sigma / C: deviation of the Gaussian noise on every number, in units of C

    def __post_init__(self):
        check_fields(self, "the channel")
        if self.noise is not None and self.clip is None:
            raise InputError(
                "the channel's noise is in units of the norm to which messages are clipped; set message_clip as well"
            )

    def __call__(self, message: Any, key: jax.Array) -> Any:
        """What arrives of one message."""
        if self.clip is not None:
            norm = optax.tree.norm(message)
            scale = jnp.minimum(1.0, self.clip / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
            message = jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), message)
        if self.noise is not None:
            keys = optax.tree.split_key_like(jax.random.fold_in(key, 0), message)
            message = jax.tree.map(self._noisy, message, keys)
        return message

    def _noisy(self, leaf: jax.Array, key: jax.Array) -> jax.Array:
        return leaf + (self.noise * self.clip * jax.random.normal(key, leaf.shape)).astype(leaf.dtype)


def _join(_, numbers) -> Channel:
    """Rebuild a channel without `__init__`, whose checks are for numbers and not for tracers."""
    channel = object.__new__(Channel)
    vars(channel).update(zip(("clip", "noise"), numbers, strict=True))
    return channel


jax.tree_util.register_pytree_node(Channel, lambda channel: ((channel.clip, channel.noise), None), _join)


def count(way: str, message: Any) -> None:
    """Record a message ('up', 'down'), given as arrays or their shapes, if `counting` is active."""
    if (found := _counts.get()) is not None:
        counts, pieces = found
        counts[way] += 1 if pieces else sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))


@contextlib.contextmanager
def counting(*, pieces: bool = False) -> Iterator[dict[str, int]]:
    """Count the bytes that one client sends ('up') and receives ('down') in the code that is traced inside.

    `pieces`: count messages instead.

    >>> with counting() as found:
    ...     count("up", {"w": jax.ShapeDtypeStruct((10, 2), jnp.float32)})
    >>> found
    {'up': 80, 'down': 0}
    """
    counts = {"up": 0, "down": 0}
    token = _counts.set((counts, pieces))
    try:
        yield counts
    finally:
        _counts.reset(token)
