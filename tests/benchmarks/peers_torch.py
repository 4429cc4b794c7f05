"""The contestants that are PyTorch and torchdeq. Needs the extra `bench`."""

import copy
import itertools
from collections.abc import Callable
from functools import partial

import client_steps
import equilibrium_layer
import numpy as np
import torch
import torchdeq
from equilibrium_layer import MAX_ITER, TOLERANCE, Result
from torch import nn
from torch.nn.functional import cross_entropy
from torchdeq.solver.anderson import anderson_solver

THREADS = torch.get_num_threads()


class SmallResNet(nn.Module):
    """`networks.SmallResNet`."""

    def __init__(self, width: int = 64):
        super().__init__()
        sizes = (3, *[width] * 4)
        self.convs = nn.ModuleList([nn.Conv2d(n, width, 3, padding=1, bias=False) for n in sizes])
        self.norms = nn.ModuleList([nn.GroupNorm(8, width) for _ in sizes])
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.relu(self.norms[0](self.convs[0](x)))
        for i in (1, 3):
            y = torch.relu(self.norms[i](self.convs[i](z)))
            z = torch.relu(z + self.norms[i + 1](self.convs[i + 1](y)))
        return self.head(z.mean((2, 3)))


def network(workload: client_steps.Workload) -> nn.Module:
    """The workload's network, shape by shape, in what is fastest here: channels last, and one thread where steps are
    so small that a second costs more than it brings.
    """
    torch.set_num_threads(1 if workload.model == "mlp" else THREADS)
    if workload.model == "small_resnet":
        return SmallResNet().to(memory_format=torch.channels_last)
    if workload.model == "mlp":
        layers = nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
        return nn.Sequential(*layers)
    convs = [(nn.Conv2d(m, n, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)) for m, n in ((1, 32), (32, 64))]
    dense = nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10)
    return nn.Sequential(*itertools.chain(*convs), *dense).to(memory_format=torch.channels_last)


def tensors(workload: client_steps.Workload) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each client's rows, pixels as floats already; an NHWC array seen as NCHW is what PyTorch calls channels last."""
    return [
        (torch.tensor(x / np.float32(255)).movedim(-1, 1), torch.tensor(y))
        for x, y in zip(*workload.data(), strict=True)
    ]


def torch_steps(workload: client_steps.Workload) -> Callable[[], None]:
    """A Python loop of SGD steps over one client's batches: the limit of whatever runs PyTorch step by step."""
    model = network(workload)
    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), client_steps.LR)
    x, y = tensors(workload)[0]
    batches = list(zip(x.split(workload.batch_size), y.split(workload.batch_size), strict=True))

    def run():
        model.load_state_dict(start)  # long training would meet denormal numbers, which are slow
        for x, y in itertools.islice(itertools.cycle(batches), workload.steps):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

    return run


def torchdeq_layer(workload: equilibrium_layer.Workload) -> Callable[[], Result]:
    """torchdeq's Anderson for both systems. It too takes samples one by one, and stops when the last has converged.

    Its ridge is absolute, and the default, 1e-4, would double the number of steps at the scale of this problem.
    """
    torch.set_num_threads(THREADS)
    torchdeq.solver.register_solver("anderson_small_ridge", partial(anderson_solver, lam=1e-8))
    deq = torchdeq.get_deq(
        f_solver="anderson_small_ridge",
        b_solver="anderson_small_ridge",
        f_tol=TOLERANCE,
        b_tol=TOLERANCE,
        f_stop_mode="rel",
        b_stop_mode="rel",
        f_max_iter=MAX_ITER,
        b_max_iter=MAX_ITER,
        ift=workload.gradient == "implicit",
        grad=1,
    )
    w, x = (torch.tensor(a, requires_grad=True) for a in workload.arrays)

    def run():
        (z,), info = deq(lambda z: torch.tanh(z @ w.T + x), torch.zeros_like(x))
        return Result(torch.autograd.grad((z**2).sum(), (w, x)), info["nstep"].max())

    return run
