"""The work of a program before it runs: products, memory traffic, sequential steps and peak memory, from its jaxpr.

Loops over clients, epochs and batches have bounds that are data: the sizes of the clients. So the jaxpr is walked with
those integers that are known, and each loop is counted as often as it will run.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal


class Work(NamedTuple):
    """The work of a program: what it executes, and what of that counts.

    A padded step is one of a client that has finished, while others of its batch have not.
    """

    flops: float = 0.0  # of matrix products, two per multiplication and addition, padded steps included
    useful: float = 0.0  # of those, without padded steps
    bytes: float = 0.0  # of the products' operands and results
    steps: float = 0.0  # iterations of innermost loops with products, one after the other
    memory: float = 0.0  # bytes of intermediate results at the peak; an upper bound, because compilers fuse

    def then(self, other: "Work") -> "Work":
        """This work, followed by another."""
        added = (mine + theirs for mine, theirs in zip(self[:4], other[:4], strict=True))
        return Work(*added, max(self.memory, other.memory))

    def times(self, executed: float, useful: float | None = None) -> "Work":
        """This work `executed` times, of which `useful` times count (None: all of them)."""
        share = executed if useful is None else useful
        return Work(
            self.flops * executed, self.useful * share, self.bytes * executed, self.steps * executed, self.memory
        )


def work_of(fn: Callable, *args: Any) -> Work:
    """The work of `fn(*args)`; nothing is computed, and arrays may be given as `jax.ShapeDtypeStruct`.

    Loops are counted by their bounds, which have to follow from integers in `args`. A solver that may stop early is
    counted with all its iterations.

    Example:
      >>> x = jax.ShapeDtypeStruct((8, 4), "float32")
      >>> work = work_of(lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: x @ (x.T @ y), x), x, 3)
      >>> work.flops == 3 * 2 * (2 * 4 * 8 * 4), work.steps
      (True, 3.0)
    """
    leaves, structure = jax.tree.flatten(args)
    shapes = [leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf) for leaf in leaves]
    closed = jax.make_jaxpr(lambda *leaves: fn(*jax.tree.unflatten(structure, leaves)))(*shapes)
    _walked.clear()
    return _walk(closed.jaxpr, closed.consts, [_known(leaf) for leaf in leaves])[0]


LARGEST = 1 << 12  # entries of an array that is followed
_walked: dict[tuple, tuple] = {}  # jaxprs of the present count, with what was known: a loop's body is walked once


def _known(value: Any) -> np.ndarray | None:
    """An array of whole numbers that decides loops; None for everything else."""
    if isinstance(value, jax.ShapeDtypeStruct) or jax.dtypes.issubdtype(jax.typeof(value).dtype, jax.dtypes.extended):
        return None
    whole = any(np.issubdtype(jax.typeof(value).dtype, kind) for kind in (np.integer, np.bool_))
    return np.asarray(value) if whole and np.size(value) <= LARGEST else None


def _size(var: Any) -> float:
    """The bytes of a variable."""
    dtype = var.aval.dtype
    return math.prod(var.aval.shape) * (8 if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else dtype.itemsize)


def _walk(jaxpr: Jaxpr, consts: Sequence, known: Sequence) -> tuple[Work, list]:
    """The work of a jaxpr, and those of its results that are known."""
    key = (id(jaxpr), *(None if value is None else (value.shape, value.tobytes()) for value in known))
    if key not in _walked:
        _walked[key] = jaxpr, _walk_anew(jaxpr, consts, known)
    return _walked[key][1]


def _walk_anew(jaxpr: Jaxpr, consts: Sequence, known: Sequence) -> tuple[Work, list]:
    values = dict(zip(jaxpr.constvars, map(_known, consts), strict=True)) | dict(zip(jaxpr.invars, known, strict=True))

    def read(var):
        return _known(var.val) if isinstance(var, Literal) else values.get(var)

    last = {var: index for index, eqn in enumerate(jaxpr.eqns) for var in eqn.invars if not isinstance(var, Literal)}
    last |= {var: len(jaxpr.eqns) for var in jaxpr.outvars if not isinstance(var, Literal)}
    given, total, live, peak = {*jaxpr.invars, *jaxpr.constvars}, Work(), 0.0, 0.0
    for index, eqn in enumerate(jaxpr.eqns):
        work, results = _count(eqn, [read(var) for var in eqn.invars])
        values |= {var: value for var, value in zip(eqn.outvars, results, strict=True) if value is not None}
        live += sum(map(_size, eqn.outvars))
        peak = max(peak, live + work.memory)
        used = {var for var in (*eqn.invars, *eqn.outvars) if not isinstance(var, Literal)}
        live -= sum(_size(var) for var in used - given if last.get(var, index) == index)
        total = total.then(work)
    return total._replace(memory=peak), [read(var) for var in jaxpr.outvars]


def _count(eqn: Any, known: list) -> tuple[Work, list]:
    """The work of one equation, and those of its results that are known."""
    name, params = eqn.primitive.name, eqn.params
    nothing = [None] * len(eqn.outvars)
    if name in ("dot_general", "conv_general_dilated"):
        flops = 2.0 * math.prod(eqn.outvars[0].aval.shape) * _terms(name, params, *(v.aval.shape for v in eqn.invars))
        return Work(flops, flops, float(sum(map(_size, (*eqn.invars, *eqn.outvars))))), nothing
    if name == "while":
        return _while(params, known), nothing
    if name == "scan":
        return _scan(params, known), nothing
    if name == "shard_map":
        return _over_devices(params, known), nothing
    if name == "cond":
        branches = [_walk(branch.jaxpr, branch.consts, known[1:])[0] for branch in params["branches"]]
        return max(branches, key=lambda work: work.flops), nothing
    inner = next((value for value in params.values() if isinstance(value, ClosedJaxpr | Jaxpr)), None)
    if inner is None:
        return Work(), _results(eqn, known)
    if "update_jaxpr" in params:  # a scatter: its function is of two numbers
        return Work(), nothing
    return _walk(*((inner.jaxpr, inner.consts) if isinstance(inner, ClosedJaxpr) else (inner, ())), known)


def _terms(name: str, params: dict, left: tuple, right: tuple) -> int:
    """The number of products that are added up for each entry of a product of matrices, or of a convolution."""
    if name == "dot_general":
        return math.prod(left[axis] for axis in params["dimension_numbers"][0][0])
    kernel = params["dimension_numbers"].rhs_spec  # output channels, input channels of a group, then space
    return math.prod(right[axis] for axis in kernel[1:])


def _results(eqn: Any, known: list) -> list:
    """The results of an equation on whole numbers whose operands are all known."""
    whole = all(
        np.issubdtype(var.aval.dtype, np.integer) or var.aval.dtype == bool
        for var in eqn.outvars
        if not jax.dtypes.issubdtype(var.aval.dtype, jax.dtypes.extended)
    )
    small = all(var.aval.size <= LARGEST for var in eqn.outvars)
    if not (whole and small and all(value is not None for value in known)) or eqn.effects:
        return [None] * len(eqn.outvars)
    with jax.ensure_compile_time_eval():
        results = eqn.primitive.bind(*known, **eqn.params)
    return [_known(value) for value in (results if eqn.primitive.multiple_results else [results])]


def _while(params: dict, known: list) -> Work:
    """The work of a loop: its body, as often as its counter needs to reach its bound."""
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    start = known[of_cond + of_body :]
    carried = zip(start, body.jaxpr.invars[of_body:], body.jaxpr.outvars, strict=True)
    fixed = [value if before is after else None for value, before, after in carried]
    inside = [*known[of_cond : of_cond + of_body], *fixed]
    inside = [None if value is None or value.dtype == bool else value for value in inside]  # masks decide no loop
    once = _walk(body.jaxpr, body.consts, inside)[0]
    if not once.flops:
        return Work(memory=once.memory)
    given = dict(zip(cond.jaxpr.invars, [*known[:of_cond], *start], strict=True))
    given |= dict(zip(cond.jaxpr.constvars, map(_known, cond.consts), strict=True))
    for eqn in cond.jaxpr.eqns:
        ends = [_known(var.val) if isinstance(var, Literal) else given.get(var) for var in eqn.invars]
        if eqn.primitive.name == "lt" and all(end is not None for end in ends):
            rounds = np.maximum(ends[1] - ends[0], 0)
            if not once.steps:
                once = once._replace(steps=1.0)
            return once.times(float(rounds.max(initial=0)), float(rounds.mean()) if rounds.size else 0.0)
    raise ValueError(f"the number of iterations of this loop is not known: {cond}")


def _scan(params: dict, known: list) -> Work:
    """The work of a loop over rows; rows that decide inner loops are counted one by one, equal rows once."""
    jaxpr, consts = params["jaxpr"].jaxpr, params["jaxpr"].consts
    first = params["num_consts"] + params["num_carry"]
    total, seen = Work(), {}
    for row in range(params["length"]):
        rows = [None if value is None else np.asarray(value[row]) for value in known[first:]]
        key = tuple(None if value is None else value.tobytes() for value in rows)
        if key not in seen:
            fixed = [*known[: params["num_consts"]], *[None] * params["num_carry"], *rows]
            seen[key] = _walk(jaxpr, consts, fixed)[0]
        total = total.then(seen[key])
    return total if total.steps or not total.flops else total._replace(steps=float(params["length"]))


def _over_devices(params: dict, known: list) -> Work:
    """The work of all devices, added up as if one did it all; of memory the largest."""
    devices = params["mesh"].size
    works = []
    for device in range(devices):
        own = [
            None if value is None or not spec else np.split(value, devices)[device]
            for value, spec in zip(known, params["in_specs"], strict=True)
        ]
        own = [value if spec else whole for value, spec, whole in zip(own, params["in_specs"], known, strict=True)]
        works.append(_walk(params["jaxpr"], (), own)[0])
    summed = [sum(parts) for parts in zip(*(work[:4] for work in works), strict=True)]
    return Work(*summed, max(work.memory for work in works))
