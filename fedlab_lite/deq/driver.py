"""The loop shared by the solvers of `fedlab_lite.deq.solvers`: evaluate, test each sample, keep the best, repeat."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Range, check_value

DIVERGED = 1e6  # a sample stops when its residual exceeds this multiple of its best residual


class Solution(NamedTuple):
    """The result of a solver for `B` samples.

    Attributes:
      z: the best iterate of each sample (lowest residual), a pytree like `z0`.
      residual: ||f(z) - z||_2 of exactly that `z`; inf where `f` never gave a finite value.
      iterations: int32, number of evaluations of `f` that the sample needed.
      trace: the residual at each evaluation; inf where it was not finite, NaN after the sample stopped.
      penalty: what a regulariser of the layer adds to each sample's loss; solvers leave it None.
      path: the iterates that `keep` asked for, leaves [len(keep), B, ...]; of a sample that stopped earlier, its `z`.
      inverse: `Inverse`, where `broyden` was asked for it.
    """

    z: PyTree[Float[Array, "B ..."]]
    residual: Float[Array, " B"]
    iterations: Int[Array, " B"]
    trace: Float[Array, "max_iter B"]
    penalty: Float[Array, " B"] | None = None
    path: PyTree[Float[Array, "keep B ..."]] | None = None
    inverse: "Inverse | None" = None


class Inverse(NamedTuple):
    """Broyden's approximation of the inverse Jacobian of f(z) - z: -I plus the sum of left_i right_i^T, per sample."""

    left: Float[Array, "memory B D"]
    right: Float[Array, "memory B D"]

    def transposed(self, y: Float[Array, "B D"]) -> Float[Array, "B D"]:
        """The transpose times y."""
        return mix(dot(self.left, y), self.right) - y


@jax.custom_batching.custom_vmap
def any_of(active: Bool[Array, "..."]) -> Bool[Array, ""]:
    """Whether any sample continues, with one answer for the whole batch under `vmap`.

    The loop then has one condition, and its body runs unchanged. With one condition per batch element JAX would add a
    selection for every array of the state.
    """
    return jnp.any(active)


@any_of.def_vmap
def _any_of_batch(axis_size: int, batched: list[bool], active: Bool[Array, "batch ..."]):
    return any_of(active), False


class State(NamedTuple):
    """What the loop carries; samples lie on axis 0 of z."""

    step: Int[Array, ""]  # evaluations so far
    z: Float[Array, "B D"]
    best: Float[Array, "B D"]
    residual: Float[Array, " B"]  # of `best`
    active: Bool[Array, " B"]
    iterations: Int[Array, " B"]
    trace: Float[Array, "max_iter B"]
    memory: PyTree  # the method's own state
    path: Float[Array, "keep B D"] | None


def dot(x: Float[Array, "*x D"], y: Float[Array, "*y D"]) -> Float[Array, "..."]:
    """Inner products over the last axis, as matrix products, because XLA's CPU reductions are not vectorised."""
    product = jnp.matmul(x[..., None, :], y[..., :, None], precision=jax.lax.Precision.HIGHEST)
    return product[..., 0, 0]


def norm(x: Float[Array, "*x D"]) -> Float[Array, "*x"]:
    """Euclidean norms over the last axis."""
    return jnp.sqrt(dot(x, x))


def mix(weights: Float[Array, "m B"], history: Float[Array, "m B D"]) -> Float[Array, "B D"]:
    """The sum over i of weights[i] history[i], unrolled so that it is one pass over the history."""
    return sum(w[:, None] * h for w, h in zip(weights, history, strict=True))


def flatten(tree: PyTree[Shaped[Array, "B ..."]]) -> Shaped[Array, "B D"]:
    """A pytree as one array [B, D]; for a single leaf this is a reshape."""
    leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=1)


def unflatten(flat: Float[Array, "B D"], like: PyTree[Shaped[Array, "B ..."]]) -> PyTree[Array]:
    """The inverse of `flatten`: a pytree like `like`."""
    leaves, structure = jax.tree.flatten(like)
    parts, start = [], 0
    for leaf in leaves:
        size = leaf.size // max(leaf.shape[0], 1)
        parts.append(flat[:, start : start + size].reshape(leaf.shape).astype(leaf.dtype))
        start += size
    return jax.tree.unflatten(structure, parts)


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.shape, tree)


def check_counts(**counts: int) -> None:
    """Raise `InputError` unless all numbers are at least 1."""
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name} = {value}: must be at least 1")


def check_tolerances(**tolerances: Any) -> None:
    """Raise `InputError` unless all are finite numbers of at least 0; those of JAX may be data of a program."""
    for name, value in tolerances.items():
        if not isinstance(value, jax.Array | np.floating):
            check_value(name, value, float, Range(0))


def check(z0: PyTree, max_iter: int, tol: Any, keep: tuple[int, ...] = (), **sizes: int) -> None:
    """Raise `InputError` unless numbers are in range, `keep` lies in the run, and leaves of `z0` share axis 0."""
    check_counts(max_iter=max_iter, **sizes)
    check_tolerances(tol=tol)
    if not all(1 <= each <= max_iter for each in keep):
        raise InputError(f"keep = {keep}: numbers of evaluations, from 1 to max_iter = {max_iter}")
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(z0)]
    if not shapes or any(not s or s[0] != shapes[0][0] for s in shapes):
        raise InputError(f"all arrays of z0 must share axis 0, the samples; their shapes are {shapes}")


def on_arrays(f: Callable, z0: PyTree[Shaped[Array, "B ..."]]) -> Callable:
    """f as a function of arrays [B, D], which raises `InputError` if f changes the shapes of its argument."""

    def evaluate(z: Float[Array, "B D"]) -> Float[Array, "B D"]:
        fz = f(unflatten(z, z0))
        if _shapes(fz) != _shapes(z0):
            raise InputError(f"f must keep the structure and shapes of z: got {_shapes(fz)} from {_shapes(z0)}")
        return flatten(fz).astype(z.dtype)

    return evaluate


def solve(
    f: Callable,
    z0: PyTree,
    memory: Callable,
    update: Callable,
    *,
    tol: float,
    max_iter: int,
    budget: Any,
    keep: tuple[int, ...] = (),
) -> tuple[Solution, PyTree]:
    """Run the loop: evaluate, test each sample, keep the best, let the method propose the next iterate.

    `memory(z) -> memory` makes the method's state for z [B, D]. `update(state, fz, g) -> (memory, next z)` makes its
    step, where g = f(z) - z. Its next z is ignored for samples that stop or have stopped.

    Returns the `Solution` and the method's last state.
    """
    z0 = jax.tree.map(jnp.asarray, z0)
    flat, evaluate = flatten(z0), on_arrays(f, z0)
    samples, eps = flat.shape[0], jnp.finfo(flat.dtype).eps
    kept = np.array(keep)[:, None, None]

    def body(s: State) -> State:
        fz = evaluate(s.z)
        g = fz - s.z
        r = norm(g)
        r = jnp.where(jnp.isfinite(r), r, jnp.inf)
        converged = r <= tol * (norm(fz) + eps)
        failed = jnp.isinf(r) | (r > DIVERGED * s.residual)
        better = s.active & (r < s.residual)
        best = jnp.where(better[:, None], s.z, s.best)
        going = s.active & ~converged & ~failed
        if budget is not None:
            going &= s.step + 1 < budget
        memory, proposed = update(s, fz, g)
        step = s.step + 1
        z = jnp.where(going[:, None], proposed, best)
        return State(
            step=step,
            z=z,
            best=best,
            residual=jnp.where(better, r, s.residual),
            active=going,
            iterations=s.iterations + s.active,
            trace=s.trace.at[s.step].set(jnp.where(s.active, r, jnp.nan)),
            memory=memory,
            path=None if s.path is None else jnp.where(kept == step, z, s.path),
        )

    last = jax.lax.while_loop(
        lambda s: (s.step < max_iter) & any_of(s.active),
        body,
        State(
            step=jnp.int32(0),
            z=flat,
            best=flat,
            residual=jnp.full(samples, jnp.inf, flat.dtype),
            active=jnp.ones(samples, bool),
            iterations=jnp.zeros(samples, jnp.int32),
            trace=jnp.full((max_iter, samples), jnp.nan, flat.dtype),
            memory=memory(flat),
            path=jnp.zeros((len(keep), *flat.shape), flat.dtype) if keep else None,
        ),
    )
    path = None
    if last.path is not None:
        path = jax.vmap(lambda z: unflatten(z, z0))(jnp.where(kept <= last.step, last.path, last.best))
    return Solution(unflatten(last.best, z0), last.residual, last.iterations, last.trace, path=path), last.memory
