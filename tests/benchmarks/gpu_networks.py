"""The networks of `gpu.py` in PyTorch, with parameters by path, and the solver of the equilibrium."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Params = dict[str, Tensor]
TOLERANCE, COLD, WARM, HISTORY, RIDGE = 1e-3, 20, 6, 5, 1e-6  # of `Solve` and `anderson`


def inside(params: Params, part: str) -> Params:
    """The parameters of one part, by their paths in it."""
    return {name.removeprefix(part + "."): leaf for name, leaf in params.items() if name.startswith(part + ".")}


def _pads(z: Tensor, size: int, stride: int) -> list[tuple[int, int]]:
    """Padding before and after both axes, as TensorFlow's SAME."""
    totals = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in z.shape[-2:]]
    return [(total // 2, total - total // 2) for total in totals]


def conv(p: Params, name: str, z: Tensor, stride: int = 1) -> Tensor:
    kernel, bias = p[f"{name}.kernel"], p.get(f"{name}.bias")
    (top, bottom), (left, right) = _pads(z, kernel.shape[-1], stride)
    if (top, left) == (bottom, right):
        return F.conv2d(z, kernel, bias, stride, (top, left))
    return F.conv2d(F.pad(z, (left, right, top, bottom)), kernel, bias, stride)


def norm(p: Params, name: str, z: Tensor, groups: int = 8) -> Tensor:
    return F.group_norm(z, groups, p[f"{name}.scale"], p[f"{name}.offset"])


def linear(p: Params, z: Tensor) -> Tensor:
    return F.linear(z, p["kernel"].T, p["bias"])


def dense(p: Params, name: str, z: Tensor) -> Tensor:
    return linear(inside(p, name), z)


def pool(z: Tensor) -> Tensor:
    """3x3 windows at stride 2, SAME."""
    rows, columns = _pads(z, 3, 2)
    return F.max_pool2d(F.pad(z, (*columns, *rows), value=-torch.inf), 3, 2)


def by_row(z: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, H W C], the order of ours."""
    return z.permute(0, 2, 3, 1).reshape(len(z), -1)


def cnn(p: Params, x: Tensor) -> Tensor:
    for name in ("convs.0", "convs.1"):
        x = F.max_pool2d(F.relu(conv(p, name, x)), 2)
    return F.relu(dense(p, "dense", by_row(x)))


def resnet(p: Params, x: Tensor) -> Tensor:
    z = F.relu(norm(p, "stem_norm", conv(p, "stem", x)))
    index = 0
    while (name := f"blocks.{index}") + ".conv1.kernel" in p:
        out, channels = p[f"{name}.conv1.kernel"].shape[:2]
        stride = 1 if out == channels else 2
        y = F.relu(norm(p, f"{name}.norm1", conv(p, f"{name}.conv1", z, stride)))
        y = norm(p, f"{name}.norm2", conv(p, f"{name}.conv2", y))
        if f"{name}.project.kernel" in p:
            z = norm(p, f"{name}.project_norm", conv(p, f"{name}.project", z, stride))
        z, index = F.relu(y + z), index + 1
    z = F.relu(dense(p, "dense1", z.mean((2, 3))))
    return norm(p, "norm", F.relu(dense(p, "dense2", z)), 1)


def cell(p: Params, u: Tensor, z: Tensor) -> Tensor:
    y = norm(p, "norm1", F.softplus(conv(p, "conv1", z)))
    y = norm(p, "norm2", u + conv(p, "conv2", y))
    return norm(p, "norm3", F.softplus(z + y))


def _weights(gram: Tensor) -> Tensor:
    """[B, n, n] -> [B, n]: weights that sum to one and make the mixed residual smallest, as `deq.solvers._weights`."""
    scale = 1 / gram.diagonal(dim1=-2, dim2=-1).sqrt().clamp_min(1e-30)
    relative = scale / scale.amax(-1, keepdim=True)
    ridge = RIDGE * torch.eye(gram.shape[-1], device=gram.device)
    scaled = gram * scale[:, :, None] * scale[:, None, :] + ridge
    w = torch.linalg.solve_ex(scaled, relative[:, :, None])[0][:, :, 0] * relative
    return w / w.sum(-1, keepdim=True)


def anderson(f: Callable, start: Tensor, iterations: int, *, stops: bool, channels_last: bool) -> Tensor:
    """Each sample's best iterate. `stops`: look after every iteration whether all have converged."""
    rows, channels, height, width = start.shape

    def as_rows(z: Tensor) -> Tensor:  # in the order in which it lies in memory
        return by_row(z) if channels_last else z.reshape(rows, -1)

    def as_images(z: Tensor) -> Tensor:
        if not channels_last:
            return z.reshape(start.shape)
        return z.reshape(rows, height, width, channels).permute(0, 3, 1, 2)

    z = best = as_rows(start)
    residual, active = torch.full_like(z[:, 0], torch.inf), torch.ones_like(z[:, 0], dtype=torch.bool)
    values, residuals, products = [], [], {}
    for step in range(iterations):
        fz = as_rows(f(as_images(z)))
        g = fz - z
        r = torch.linalg.vector_norm(g, dim=-1)
        converged = r <= TOLERANCE * (torch.linalg.vector_norm(fz, dim=-1) + torch.finfo(z.dtype).eps)
        better = active & (r < residual)
        best, residual = torch.where(better[:, None], z, best), torch.where(better, r, residual)
        active = active & ~converged
        if step + 1 == iterations or (stops and not active.any()):
            break
        values, residuals = [*values, fz][-HISTORY:], [*residuals, g][-HISTORY:]
        first = step + 1 - len(values)
        for place, other in enumerate(residuals, first):
            products[step, place] = products[place, step] = torch.linalg.vecdot(other, g)
        kept = range(first, step + 1)
        w = _weights(torch.stack([torch.stack([products[i, j] for j in kept], -1) for i in kept], -2))
        mixed = sum(w[:, i, None] * value for i, value in enumerate(values))
        z = torch.where(active[:, None], mixed, best)
    return as_images(best)


def deq(p: Params, x: Tensor, z0: Tensor | None, **how: bool) -> tuple[Tensor, Tensor]:
    """Features and equilibria, with the one-step gradient."""
    u = pool(norm(p, "stem_norm", F.softplus(conv(p, "stem", x))))
    with torch.no_grad():
        start = u if z0 is None else torch.where((z0 != 0).flatten(1).any(1)[:, None, None, None], z0, u)
        found = anderson(lambda z: cell(p, u, z), start, COLD if z0 is None else WARM, **how)
    found = found.detach()
    z = by_row(pool(cell(p, u, found)))
    z = F.softplus(dense(p, "dense2", F.softplus(dense(p, "dense1", z))))
    return norm(p, "norm", z, 1), found
