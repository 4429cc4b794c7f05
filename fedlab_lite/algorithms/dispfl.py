"""DisPFL: decentralised training of one sparse model per client.

Dai et al., "DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized Sparse Training",
2022, Algorithms 1 and 2.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax.custom_batching import sequential_vmap

from fedlab_lite.algorithms.parts import Decentralised, project_all, random_batch
from fedlab_lite.engine import ClientData, Models, Problem, RoundContext, length_of, mix
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import one_of, ranged

PRUNE = 0.5  # a, share of a mask that the first round renews


@dataclass(frozen=True)
class DisPFL(Decentralised):
    """One sparse model per client: w_i under the client's own mask m_i, with one constant density for all clients.

    In a round, each number of w_i becomes its mean over the client and those neighbours whose mask has the number,
    under the mask m_i. Then comes local training under the mask. Then the smallest of `|w_i|` leave the mask and as
    many others join it. Their share falls with the cosine of the round. A number that is in no mask starts at 0.

    The message carries the mask of the training: one bit per number, besides the numbers that the mask keeps. Biases
    have masks like all other arrays.

    A client is judged after training. Under 'mixed' it is judged with the average that the next round would start from,
    projected where the model has a constraint set.

    A newcomer starts at the mean of all w_i and trains without a mask (the paper has no newcomers).

    An array keeps the whole part of its share of numbers, as in its code. So a model may keep one number less per array
    than its density says. Masks are exact and depend on the client's rows. Therefore a channel with noise, which
    promises privacy, is refused.
    """

    epochs: int = ranged(5, 1)  # passes over the client's rows per round
    steps: int | None = ranged(None, 1)  # random batches per round, in place of passes; None: `epochs`
    density: float = ranged(0.5, 0, 1, above=True, static=True)  # share of the numbers that a mask keeps
    horizon: int = ranged(500, 1)  # T, rounds until masks stay fixed
    regrow: str = one_of("gradient", "random")  # what joins: largest gradients of one batch; or as in its scripts

    owned: ClassVar[tuple[str, ...]] = ("client_params", "masks", "next_masks")

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if problem.channel is not None and problem.channel.noise:
            raise InputError(
                "DisPFL sends its masks without noise, and they depend on the client's rows, so noise on its numbers "
                "protects nothing; leave message_noise out, or use another algorithm"
            )

    def kept(self, params: Any) -> Any:
        """The number of entries that a mask keeps of each array; `params` are one model's, or their shapes."""
        leaves, structure = jax.tree.flatten(params)
        shares = erk([leaf.shape for leaf in leaves], self.density)
        # rounding may have left a share just below the one that it stands for: 29.999999 are 30
        counts = [max(1, math.floor(round(share * leaf.size, 6))) for share, leaf in zip(shares, leaves, strict=True)]
        return jax.tree.unflatten(structure, counts)

    def init(self, problem: Problem, key: jax.Array) -> dict:
        params = problem.model.init(key)
        keys = jax.random.split(jax.random.fold_in(key, 1), problem.num_clients)
        masks = problem.for_clients(self.random_mask, keys, shared=(params,))
        own = jax.tree.map(lambda leaf, mask: leaf * mask, params, masks)
        return {"client_params": own, "masks": masks, "next_masks": masks}

    def random_mask(self, key: jax.Array, params: dict) -> dict:
        return jax.tree.map(largest, random_bits(key, params), self.kept(params))

    def mixed(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        """What training starts from: each number's mean over its holders, under the mask of this training."""
        own, held = state["client_params"], jax.tree.map(lambda mask: mask.astype(jnp.float32), state["masks"])
        received = problem.transmit(at, own, ways=("up", "down"), packed=self.packed(own))
        received = jax.tree.map(jnp.multiply, received, state["masks"])
        graph = problem.graph
        sums = jax.tree.map(jnp.add, own, mix(graph.adjacency, received, graph.neighbours))
        holders = jax.tree.map(jnp.add, held, mix(graph.adjacency, held, graph.neighbours))
        masks = state["next_masks"]
        return jax.tree.map(lambda w, n, m: (w / jnp.maximum(n, 1)).astype(w.dtype) * m, sums, holders, masks)

    def round(self, problem: Problem, state: dict, at: RoundContext) -> dict:
        start, masks = self.mixed(problem, state, at), state["next_masks"]
        renewed = PRUNE / 2 * (1 + jnp.cos(math.pi * jnp.minimum(at.index / self.horizon, 1)))
        own, after = self.for_cohort(problem, self.sparse_update, at, start, masks, shared=(renewed,))
        return {"client_params": own, "masks": masks, "next_masks": after}

    @property
    def moment(self) -> str:
        return "trained"

    def other_models(self, problem: Problem, state: dict, key: jax.Array) -> dict[str, Models]:
        start = self.mixed(problem, state, problem.everyone(key))
        return {"mixed": (project_all(problem, problem.project, start), {})}

    def packed(self, own: Any) -> Any:
        """The shapes of a message: the numbers that a mask keeps, and the mask itself, eight bits per byte."""
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), own)

        def message(leaf, kept):
            return jax.ShapeDtypeStruct((kept,), leaf.dtype), jax.ShapeDtypeStruct((-(-leaf.size // 8),), jnp.uint8)

        return jax.tree.map(message, one, self.kept(one))

    def sparse_update(
        self, problem: Problem, data: ClientData, key: jax.Array, params: dict, mask: dict, renewed: jax.Array
    ) -> Models:
        """Train under the mask, then renew it; returns both for the next round."""
        train_key, batch_key, random_key = jax.random.split(key, 3)

        def under_mask(params: dict) -> dict:
            return jax.tree.map(jnp.multiply, problem.project(params), mask)

        length = length_of(self.epochs, self.steps)
        params = self.train(problem.loss, params, data, train_key, project=under_mask, **length)
        if self.regrow == "gradient":
            batch = random_batch(data, batch_key, self.batch_size)
            gradient = jax.grad(lambda params: problem.loss(params, batch)[0])(params)
            wanted = jax.tree.map(_size, gradient)
        else:
            wanted = jax.tree.map(lambda bits: bits >> 1, random_bits(random_key, params))
        after = jax.tree.map(
            lambda leaf, mask, new, count: renew(_size(leaf), mask, new, count, renewed),
            params, mask, wanted, self.kept(params),
        )  # fmt: skip
        return params, after


def random_bits(key: jax.Array, params: Any) -> Any:
    """Random unsigned integers in the params' shapes."""
    keys = optax.tree.split_key_like(key, params)
    return jax.tree.map(lambda key, leaf: jax.random.bits(key, leaf.shape, jnp.uint32), keys, params)


def _size(leaf: jax.Array) -> jax.Array:
    """The absolute values |x| as unsigned integers, in the same order."""
    return jax.lax.bitcast_convert_type(jnp.abs(leaf.astype(jnp.float32)), jnp.uint32)


def renew(size: jax.Array, mask: jax.Array, wanted: jax.Array, count: int, share: jax.Array) -> jax.Array:
    """A new mask: without the ceil(share * count) smallest of its numbers, and with as many of the most wanted others.

    Numbers that have just left may come back. `size` and `wanted`: unsigned integers below 2^31.
    """
    leave = jnp.ceil(share * count).astype(jnp.int32)
    stay = largest(jnp.where(mask, size + 1, 0), count - leave)
    return stay | largest(jnp.where(stay, 0, wanted + 1), leave)


@sequential_vmap
def largest(scores: jax.Array, count: jax.Array | int) -> jax.Array:
    """Mark the `count` largest entries of an array of unsigned integers; of equal entries the first.

    It finds the bits of the count-th largest entry, from the highest bit on, with one pass over the array per bit. This
    is about ten times faster than sorting. `count` may be traced. Under vmap arrays are processed one after the other,
    so that each fits in the cache.

    >>> largest(jnp.array([3, 9, 9, 1, 9], jnp.uint32), 2).tolist()
    [False, True, True, False, False]
    """

    def next_bit(index, bound):
        higher = bound | (jnp.uint32(1) << (31 - index).astype(jnp.uint32))
        return jnp.where(jnp.sum(scores >= higher, dtype=jnp.int32) >= count, higher, bound)

    bound = jax.lax.fori_loop(0, 32, next_bit, jnp.uint32(0))
    above, equal = scores > bound, scores == bound
    room = count - jnp.sum(above, dtype=jnp.int32)

    def first_ones() -> jax.Array:
        return equal & (jnp.cumsum(equal.ravel(), dtype=jnp.int32).reshape(scores.shape) <= room)

    return above | jax.lax.cond(jnp.sum(equal, dtype=jnp.int32) == room, lambda: equal, first_ones)


def erk(shapes: list[tuple[int, ...]], density: float) -> list[float]:
    """Densities for arrays of these shapes, in proportion to sum(shape) / prod(shape), with `density` over all arrays.

    An array whose share would exceed 1 is dense, and the others are scaled again (Evci et al. 2020,
    Erdős-Rényi-kernel).

    >>> [round(share, 3) for share in erk([(100, 100), (10,)], 0.5)]
    [0.5, 1.0]
    """
    sizes = [math.prod(shape) for shape in shapes]
    raw = [sum(shape) / size if shape else 1.0 for shape, size in zip(shapes, sizes, strict=True)]
    dense: set[int] = set()
    while True:
        sparse = [i for i in range(len(shapes)) if i not in dense]
        left = density * sum(sizes) - sum(sizes[i] for i in dense)
        scale = max(left, 0) / sum(raw[i] * sizes[i] for i in sparse) if sparse else 0.0
        over = {i for i in sparse if raw[i] * scale > 1}
        if not over:
            return [1.0 if i in dense else raw[i] * scale for i in range(len(shapes))]
        dense |= over
