"""The channel: what happens to a message between client and server, or over a link of a graph, and its size in bytes.

Every algorithm's messages pass `Problem.uplink`, `downlink` or `transmit`. These hand them to the problem's channel and
count the bytes of the trees that pass.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedlab_lite.util import InputError
from fedlab_lite.util.fields import check_fields, ranged

SCALE_BYTES = 4  # per quantised array: the float32 that its integers are multiples of
_counts: ContextVar[tuple[dict[str, int], bool] | None] = ContextVar("counts", default=None)


@dataclass(frozen=True)
class Channel:
    """Clips a message, adds noise and quantises it, in this order; each step is optional.

    A channel is a pytree. Its numbers are data of a compiled round. Only `bits`, and which of the numbers are set, are
    structure.

    Raises `InputError` for numbers out of range.

    Example:
      >>> channel = Channel(clip=1.0)
      >>> message = {"w": jnp.array([3.0, 4.0])}
      >>> [round(w, 3) for w in channel(message, jax.random.key(0))["w"].tolist()]
      [0.6, 0.8]
      >>> Channel(bits=8).message_bytes(message)
      6
    """

    clip: float | None = ranged(None, 0, above=True)  # C: a message of a larger L2 norm is scaled to this one
    noise: float | None = ranged(None, 0)  # sigma / C: deviation of the Gaussian noise on every number, in units of C
    bits: int | None = ranged(None, 2, 16)  # b, sign included: numbers become integers, at random, with the same mean

    def __post_init__(self):
        check_fields(self, "the channel")
        if self.noise is not None and self.clip is None:
            raise InputError(
                "the channel's noise is in units of the norm that messages are clipped to, but they are not clipped; "
                "set message_clip as well"
            )

    def __call__(self, message: Any, key: jax.Array) -> Any:
        """What arrives of one message."""
        if self.clip is not None:
            norm = optax.tree.norm(message)
            scale = jnp.minimum(1.0, self.clip / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
            message = jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), message)
        if self.noise is not None:
            message = self._each(message, key, 0, self._noisy)
        if self.bits is not None:
            message = self._each(message, key, 1, self._quantised)
        return message

    @staticmethod
    def _each(message: Any, key: jax.Array, step: int, change: Callable) -> Any:
        return jax.tree.map(change, message, optax.tree.split_key_like(jax.random.fold_in(key, step), message))

    def _noisy(self, leaf: jax.Array, key: jax.Array) -> jax.Array:
        return leaf + (self.noise * self.clip * jax.random.normal(key, leaf.shape)).astype(leaf.dtype)

    def _quantised(self, leaf: jax.Array, key: jax.Array) -> jax.Array:
        """The message rounded to multiples of (largest entry) / (2^(b-1) - 1).

        Rounding is random, with the probability of rounding up that keeps the mean.
        """
        levels = 2 ** (self.bits - 1) - 1
        unit = jnp.max(jnp.abs(leaf), initial=0) / levels
        steps = leaf / jnp.where(unit > 0, unit, 1)
        whole = jnp.clip(jnp.floor(steps + jax.random.uniform(key, leaf.shape)), -levels, levels)
        return (whole * unit).astype(leaf.dtype)

    def message_bytes(self, message: Any) -> int:
        """Message size in bytes, from the arrays of one message or their shapes."""
        return sum(
            leaf.size * leaf.dtype.itemsize if self.bits is None else -(-leaf.size * self.bits // 8) + SCALE_BYTES
            for leaf in jax.tree.leaves(message)
        )


def _split(channel: Channel):
    floats = {name: getattr(channel, name) for name in ("clip", "noise")}
    present = tuple(name for name, value in floats.items() if value is not None)
    return [floats[name] for name in present], (present, channel.bits)


def _join(structure, leaves) -> Channel:
    """Rebuild a channel without `__init__`, whose checks are for numbers and not for tracers."""
    present, bits = structure
    channel = object.__new__(Channel)
    vars(channel).update({"clip": None, "noise": None, "bits": bits})
    vars(channel).update(zip(present, leaves, strict=True))
    return channel


jax.tree_util.register_pytree_node(Channel, _split, _join)


def count(way: str, message: Any, channel: Channel | None) -> None:
    """Record a message ('up', 'down') if `counting` is active."""
    if (found := _counts.get()) is not None:
        counts, pieces = found
        counts[way] += 1 if pieces else (channel or Channel()).message_bytes(message)


@contextlib.contextmanager
def counting(*, pieces: bool = False) -> Iterator[dict[str, int]]:
    """Count the bytes that one client sends ('up') and receives ('down') in the code that is traced inside.

    `pieces`: count messages instead.

    >>> with counting() as found:
    ...     count("up", {"w": jax.ShapeDtypeStruct((10, 2), jnp.float32)}, None)
    >>> found
    {'up': 80, 'down': 0}
    """
    counts = {"up": 0, "down": 0}
    token = _counts.set((counts, pieces))
    try:
        yield counts
    finally:
        _counts.reset(token)
