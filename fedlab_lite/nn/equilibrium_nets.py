"""Equilibrium representations: DEQ-MLP (FeDEQ, Figs. 3-4) and DEQ-ResNet-S/M (Tables II and V).

Each consists of an injection u = injection(x), one cell g with z* = g(z*; u) (eq. (1)), and a few explicit layers. The
cells are plain functions `cell(params, u, z) -> z`, as `deq.equilibrium` takes them.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx

from fedlab_lite.deq import (
    GRADIENTS,
    SOLVERS,
    Solution,
    equilibrium,
    jacobian_norm,
    monotone,
    normalise_spectral,
    peaceman_rachford,
    project_linf,
    splitting,
)
from fedlab_lite.nn.layers import Conv, GroupNorm, MaybeArray, as_float, conv2d, group_norm, max_pool, softplus
from fedlab_lite.util import InputError
from fedlab_lite.util.fields import Count, Rate, check_fields, one_of, ranged

_PROBE = 0x4A6  # keeps the regulariser's draws apart from dropout's


@dataclass(frozen=True)
class Solve:
    """Settings of the equilibrium solver and its gradient (FeDEQ, Sec. V-A3: Anderson acceleration, one-step gradient).

    `tol` is relative, per sample; the paper prints neither it nor the largest number of iterations. A solve that starts
    at a stored equilibrium takes at most `warm_iter` iterations. The residual that remains is reduced at the next visit
    (Fig. 10's notebook measures it). `backward_*` are options of the exact gradient, 'implicit'.

    `regulariser` is the weight gamma of `deq.jacobian_norm` in the loss of every local step (Bai et al. 2021). With 0
    there is none.
    """

    solver: str = one_of("anderson", *SOLVERS)
    gradient: str = one_of("one_step", *GRADIENTS)
    max_iter: int = ranged(20, 1)
    warm_iter: int = ranged(6, 1)
    tol: float = ranged(1e-3, 0)
    backward_iter: int = ranged(30, 1)
    backward_tol: float = ranged(1e-4, 0)
    regulariser: float = ranged(0.0, 0)

    def __post_init__(self):
        check_fields(self, "Solve")

    def __call__(
        self,
        cell,
        params,
        u: jax.Array,
        z0: MaybeArray = None,
        *,
        budget: MaybeArray = None,
        positions: bool = False,
        key: MaybeArray = None,
    ) -> tuple[jax.Array, Solution]:
        """Return z = cell(params, u, z*) and the solver's `Solution`, from `u [B, ...]`, which has the shape of z.

        The solver starts at `z0 [B, ...]`, each sample's equilibrium at its last visit (its `Solution.z`; Sec. V-A3).
        A sample whose `z0` is all zeros was not visited yet and starts at `u`. None: all samples start at `u`.
        `budget`: iterations that this device can afford, forward and backward, at most `max_iter`.
        `positions`: axis 1 numbers the positions of a text, and the solver treats each as a separate sample. With one
        set of mixing weights per row, a later token would change the iterates of an earlier one.
        `key`: of a step in training. It draws the probe of the regulariser, whose value is `Solution.penalty`.
        Raises `InputError` for a `z0` of another shape.
        """
        start = u if z0 is None else _warm(z0, u)
        options = asdict(self) | {"budget": budget, "backward_max_iter": self.backward_iter}
        del options["backward_iter"], options["regulariser"]
        warm_iter = options.pop("warm_iter")
        if z0 is not None:
            options["max_iter"] = min(warm_iter, self.max_iter)
        if positions:
            z, solution = _of_positions(cell, params, u, start, **options)
        else:
            z, solution = equilibrium(cell, params, u, start, **options)
        if self.regulariser and key is not None:
            norm = jacobian_norm(lambda z: cell(params, u, z), solution.z, jax.random.fold_in(key, _PROBE))
            solution = solution._replace(penalty=self.regulariser * norm)
        return z, solution


def _of_positions(cell, params, u: jax.Array, start: jax.Array, **options) -> tuple[jax.Array, Solution]:
    def flat_cell(params, u, z):
        return cell(params, u, z.reshape(u.shape)).reshape(z.shape)

    z, solution = equilibrium(flat_cell, params, u, start.reshape(-1, *u.shape[2:]), **options)
    residual, iterations, trace = (x.reshape(*x.shape[:-1], *u.shape[:2]) for x in solution[1:4])
    whole = jnp.sqrt(jnp.where(jnp.isnan(trace), 0, trace**2).sum(-1))
    trace = jnp.where(jnp.isnan(trace).all(-1), jnp.nan, whole)
    row = Solution(solution.z.reshape(u.shape), jnp.sqrt((residual**2).sum(-1)), iterations.max(-1), trace)
    return z.reshape(u.shape), row


def _warm(z0: jax.Array, u: jax.Array) -> jax.Array:
    if z0.shape != u.shape:
        raise InputError(f"z0 has shape {z0.shape}, the equilibrium {u.shape}; pass `solution.z` of an earlier pass")
    visited = jnp.any(z0 != 0, axis=tuple(range(1, z0.ndim)), keepdims=True)
    return jnp.where(visited, z0, u)


def dense_cell(params: dict, u: jax.Array, z: jax.Array) -> jax.Array:
    """The cell of eq. (3): z = phi(B z + C x + b) with u = C x + b and phi = ReLU."""
    return nnx.relu(z @ params["B"].T + u)


def residual_cell(
    params: dict, u: jax.Array, z: jax.Array, *, activation: Callable = softplus, groups: int = 8
) -> jax.Array:
    """The residual block g(z; u) = GN(s(z + GN(u + conv2(GN(s(conv1 z)))))).

    s is softplus in FeDEQ and ReLU in FL-DEQ.
    """
    y = activation(conv2d(z, params["conv1"]))
    y = group_norm(y, params["scale1"], params["offset1"], groups=groups)
    y = group_norm(u + conv2d(y, params["conv2"]), params["scale2"], params["offset2"], groups=groups)
    return group_norm(activation(z + y), params["scale3"], params["offset3"], groups=groups)


def residual_arrays(module: nnx.Module) -> dict:
    """The params of `residual_cell`, from a module with conv1, conv2, norm1, norm2 and norm3."""
    convs = {"conv1": module.conv1.kernel[...], "conv2": module.conv2.kernel[...]}
    norms = {1: module.norm1, 2: module.norm2, 3: module.norm3}
    scales = {f"scale{i}": norm.scale[...] for i, norm in norms.items()}
    return convs | scales | {f"offset{i}": norm.offset[...] for i, norm in norms.items()}


class DEQMLP(nnx.Module):
    """DEQ-MLP: injection C x, equilibrium layer of `width`, dense layer of `features`; 737,214 parameters in Fig. 4.

    Eq. (3)'s bias b is left out: Fig. 4's "41 % smaller" holds only without it. `parametrisation` guarantees an
    equilibrium:

        linf       B is projected to the l-infinity ball of eq. (4), of radius `kappa`
        spectral   B is scaled into the ball of the spectral norm, of radius `kappa`
        monotone   W = kappa I - A^T A + B - B^T, `deq.monotone` with m = 1 - kappa; W may be large

    With 'linf' and 'spectral' the cell is a contraction, and `kappa` 0 leaves B unconstrained, as in the second curve
    of Fig. 3. With 'monotone' any A and B will do, so nothing is projected. That layer is found by splitting:
    `Solution` is that of `deq.peaceman_rachford`, whose fixed point v gives z = relu(v). The guarantee that the solver
    converges is for solver='fixed_point'; Anderson's method is faster and has no proof.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        *,
        width: Count = 512,
        features: Count = 128,
        kappa: Rate = 0.95,
        parametrisation: Annotated[str, ("linf", "spectral", "monotone")] = "linf",
        solve: Solve,
        rngs: nnx.Rngs,
    ):
        square = nnx.initializers.lecun_normal()
        self.C = nnx.Linear(math.prod(input_shape), width, use_bias=False, rngs=rngs)
        self.B = nnx.Param(square(rngs.params(), (width, width)))
        self.dense = nnx.Linear(width, features, rngs=rngs)
        if parametrisation == "monotone":
            if solve.gradient != "implicit" or solve.regulariser:
                raise InputError(
                    "parametrisation='monotone' is solved by splitting; use gradient='implicit', which is the layer's "
                    "own gradient there, and regulariser=0, because the Jacobian is that of the splitting"
                )
            self.A = nnx.Param(square(rngs.params(), (width, width)))
        self.features, self.kappa, self.parametrisation, self.solve = features, kappa, parametrisation, solve

    def project(self) -> None:
        if self.kappa and self.parametrisation != "monotone":
            onto = project_linf if self.parametrisation == "linf" else normalise_spectral
            self.B[...] = onto(self.B[...], self.kappa)

    def __call__(
        self, x: jax.Array, *, z0: MaybeArray = None, budget: MaybeArray = None, key: MaybeArray = None
    ) -> tuple[jax.Array, Solution]:
        u = self.C(as_float(x).reshape(x.shape[0], -1))
        if self.parametrisation == "monotone":
            params = splitting(monotone(self.A[...], self.B[...], 1 - self.kappa))
            v, solution = self.solve(peaceman_rachford, params, u, z0, budget=budget)
            z = nnx.relu(v)
        else:
            z, solution = self.solve(dense_cell, {"B": self.B[...]}, u, z0, budget=budget, key=key)
        return nnx.relu(self.dense(z)), solution


class DEQResNet(nnx.Module):
    """DEQ-ResNet: stem, one equilibrium residual block of `channels` -> 2 `channels` -> `channels`, two dense layers.

    `channels=64` is DEQ-ResNet-S, 128 DEQ-ResNet-M. All activations are softplus ("a smooth version of ReLU, to enforce
    the smoothness assumption", Sec. V-A3). The block's weights start at N(0, 0.01^2), as in the reference code.

    It has no `parametrisation`: GroupNorm divides by a standard deviation, so no bound on weights makes a contraction.
    """

    def __init__(self, input_shape: tuple[int, int, int], *, channels: Count = 64, solve: Solve, rngs: nnx.Rngs):
        small = nnx.initializers.normal(0.01)
        self.stem = Conv(input_shape[-1], channels, kernel_init=small, rngs=rngs)
        self.stem_norm = GroupNorm(channels)
        self.conv1 = Conv(channels, 2 * channels, kernel_init=small, rngs=rngs)
        self.norm1 = GroupNorm(2 * channels)
        self.conv2 = Conv(2 * channels, channels, kernel_init=small, rngs=rngs)
        self.norm2 = GroupNorm(channels)
        self.norm3 = GroupNorm(channels)
        height, width = ((n + 3) // 4 for n in input_shape[:2])  # two max-pools of stride 2, SAME
        self.dense1 = nnx.Linear(height * width * channels, 256, rngs=rngs)
        self.dense2 = nnx.Linear(256, 128, rngs=rngs)
        self.norm = GroupNorm(128, groups=1)
        self.features, self.solve = 128, solve

    def __call__(
        self, x: jax.Array, *, z0: MaybeArray = None, budget: MaybeArray = None, key: MaybeArray = None
    ) -> tuple[jax.Array, Solution]:
        u = max_pool(self.stem_norm(softplus(self.stem(as_float(x)))), 3, 2, "SAME")
        z, solution = self.solve(residual_cell, residual_arrays(self), u, z0, budget=budget, key=key)
        z = max_pool(z, 3, 2, "SAME").reshape(x.shape[0], -1)
        z = softplus(self.dense2(softplus(self.dense1(z))))
        return self.norm(z), solution
