"""The rounds of `gpu.py` in PyTorch: the same networks, order of rows and solver, as a loop over clients or under vmap.

A step is one function of parameters and a batch. It is called eagerly, or compiled by `torch.compile`, or recorded as
a CUDA graph. The solver differs in one thing: only the eager loop stops when all samples have converged. The others
have no control flow on data, so they take the largest number of iterations, with the same masks.
"""

import contextlib
from collections.abc import Callable

import numpy as np
import torch
from gpu_networks import Params, cnn, deq, inside, linear, resnet
from torch import Tensor
from torch.nn import functional as F

MODES = {  # the slowest to compile last
    "loop, eager": "eager",
    "loop, CUDA graph": "graph",
    "torch.func.vmap": "vmap",
    "torch.func.vmap, CUDA graph": "vmap_graph",
    "loop, torch.compile": "compiled",
}


def set_precision(precision: str) -> None:
    """Set TF32 on or off in all products and convolutions; one thread on a CPU, which is only rehearsed on."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def tensors(flat: dict[str, np.ndarray], channels_last: bool) -> Params:
    """Parameters by path on the device; kernels of convolutions are [out, in, k, k]."""
    there = {name: torch.tensor(leaf, device=device()) for name, leaf in flat.items()}
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return {name: leaf.contiguous(memory_format=layout) if leaf.ndim == 4 else leaf for name, leaf in there.items()}


class Steps:
    """SGD on parameters that it holds. `loss(trained, fixed, *batch) -> (mean, equilibria)`."""

    def __init__(self, loss: Callable, lr: float, mode: str):
        self.loss, self.lr, self.mode, self.graph = loss, lr, mode, None
        self.trained: Params = {}
        if mode == "compiled":
            options = {"mode": "reduce-overhead"} if torch.cuda.is_available() else {"backend": "aot_eager"}
            self.loss = torch.compile(loss, **options)
        if mode.startswith("vmap"):
            self.batched = torch.func.vmap(torch.func.grad(loss, has_aux=True))

    def begin(self, trained: Params, fixed: dict) -> None:
        if not (self.trained and self.mode.endswith("graph")):
            grad = not self.mode.startswith("vmap")
            self.trained = {name: leaf.detach().clone().requires_grad_(grad) for name, leaf in trained.items()}
            self.fixed = {part: {name: leaf.clone() for name, leaf in tree.items()} for part, tree in fixed.items()}
            return
        self._set(trained)
        for part, tree in fixed.items():
            for name, leaf in tree.items():
                self.fixed[part][name].copy_(leaf)

    @torch.no_grad()
    def _set(self, trained: Params) -> None:
        for name, leaf in trained.items():
            self.trained[name].copy_(leaf)

    def result(self) -> Params:
        return {name: leaf.detach().clone() for name, leaf in self.trained.items()}

    def step(self, *batch: Tensor) -> Tensor:
        """Take one step; returns the batch's equilibria."""
        if not self.mode.endswith("graph") or not torch.cuda.is_available():
            return self._now(*batch)
        if self.graph is None:
            self._record(batch)
        for held, new in zip(self.batch, batch, strict=True):
            held.copy_(new)
        self.graph.replay()
        return self.z

    def _now(self, *batch: Tensor) -> Tensor:
        if self.mode.startswith("vmap"):
            gradient, z = self.batched(self.trained, self.fixed, *batch)
            gradient = [gradient[name] for name in self.trained]
        else:
            if self.mode == "compiled":
                torch.compiler.cudagraph_mark_step_begin()
            value, z = self.loss(self.trained, self.fixed, *batch)
            gradient = torch.autograd.grad(value, list(self.trained.values()))
        with torch.no_grad():
            torch._foreach_add_(list(self.trained.values()), gradient, alpha=-self.lr)
        return z.detach()

    def _record(self, batch: tuple[Tensor, ...]) -> None:
        before, self.batch = self.result(), [part.clone() for part in batch]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries choose their algorithms before the recording
            for _ in range(3):
                self._now(*self.batch)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.z = self._now(*self.batch)
        self._set(before)


class Round:
    """A round of FedAvg or FedEQ for a workload of `gpu.py`; a call returns its new parts, after synchronising."""

    def __init__(self, workload, mode: str, channels_last: bool = False):
        channels_last &= not mode.startswith("vmap")  # where group norm takes the other order alone
        self.workload, self.mode = workload, mode
        self.stacked = mode.startswith("vmap")
        how = {"stops": mode == "eager", "channels_last": channels_last}
        state, data, orders = workload.start()
        x = (torch.tensor(data[0], device=device()) / 255).movedim(-1, -3)  # in memory: channels last
        self.x = x if channels_last else x.contiguous()
        self.y = torch.tensor(data[1], device=device()).long()
        self.orders = {part: torch.tensor(order, device=device()) for part, order in orders.items()}
        self.state = {part: tensors(flat, channels_last) for part, flat in state.items()}
        network = {"cnn": cnn, "resnet20": resnet}.get(workload.model)

        def explicit(trained, fixed, x, y, z0):
            features = network(inside(trained, "representation"), x)
            return F.cross_entropy(linear(inside(trained, "head"), features), y), y

        def augmented(theta_i, fixed, x, y, z0):
            features, z = deq(theta_i, x, z0, **how)
            value = F.cross_entropy(linear(fixed["head"], features), y)
            gaps = {name: theta_i[name] - fixed["theta"][name] for name in theta_i}
            value = value + sum((fixed["dual"][name] * gap).sum() for name, gap in gaps.items())
            return value + workload.rho / 2 * sum((gap * gap).sum() for gap in gaps.values()), z

        def of_head(head, fixed, features, y, z0):
            return F.cross_entropy(linear(head, features), y), y

        def represent(theta, x):
            return deq(theta, x, None, **how)[0]

        self.steps = Steps(augmented if workload.equilibrium else explicit, workload.lr, mode)
        self.head_steps = Steps(of_head, workload.lr, mode)
        self.represent = torch.func.vmap(represent, (None, 0)) if self.stacked else represent
        if mode == "compiled":
            options = {} if torch.cuda.is_available() else {"backend": "aot_eager"}
            self.represent = torch.compile(represent, **options)

    def _train(self, steps: Steps, trained: Params, fixed: dict, x: Tensor, y: Tensor, order: Tensor, memory=None):
        """Local training of one client, or of all at once; `order [(clients,) epochs, steps, B]`."""
        steps.begin(trained, fixed)
        clients = torch.arange(len(x), device=x.device)[:, None]
        for batch in order.flatten(-3, -2).unbind(-2):
            at = (clients, batch) if self.stacked else (batch,)
            z = steps.step(x[at], y[at], y[at] if memory is None else memory[at])
            if memory is not None:
                memory[at] = z
        return steps.result()

    def _client(self, own: dict[str, Params], x: Tensor, y: Tensor, orders: dict[str, Tensor]) -> dict[str, Params]:
        if not self.workload.equilibrium:
            return {"params": self._train(self.steps, own["params"], {}, x, y, orders["params"])}
        theta = own["theta"]
        with torch.no_grad():
            shared = {name: leaf[0] for name, leaf in theta.items()} if self.stacked else theta
            features = self.represent(shared, x)
        head = self._train(self.head_steps, own["heads"], {}, features, y, orders["heads"])
        memory = torch.zeros((*x.shape[:-3], *self.workload.memory), device=x.device)
        fixed = {"head": head, "theta": theta, "dual": own["duals"]}
        theta_i = self._train(self.steps, theta, fixed, x, y, orders["theta"], memory)
        dual = {name: own["duals"][name] + self.workload.rho * (theta_i[name] - theta[name]) for name in theta}
        return {"theta": theta_i, "heads": head, "duals": dual}

    def __call__(self, clients: int | None = None) -> dict[str, Params]:
        """Run a round, or only the first clients of it."""
        shared, clients = self.workload.shared, clients or len(self.x)

        def own(i):
            """One client's part of the state; i = None: those of all, stacked."""

            def of(part, leaf):
                if part not in shared:
                    return leaf if i is None else leaf[i]
                return leaf.expand(len(self.x), *leaf.shape) if i is None else leaf

            return {part: {name: of(part, leaf) for name, leaf in tree.items()} for part, tree in self.state.items()}

        if self.stacked:
            new = self._client(own(None), self.x, self.y, self.orders)
        else:
            each = [
                self._client(own(i), self.x[i], self.y[i], {part: order[i] for part, order in self.orders.items()})
                for i in range(clients)
            ]
            new = {
                part: {name: torch.stack([one[part][name] for one in each]) for name in tree}
                for part, tree in each[0].items()
            }
        new |= {part: {name: leaf.mean(0) for name, leaf in new[part].items()} for part in shared}
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return new


def arrays(state: dict[str, Params]) -> dict[str, dict[str, np.ndarray]]:
    return {part: {name: leaf.cpu().numpy() for name, leaf in tree.items()} for part, tree in state.items()}


def best_layout(make: Callable, seconds: Callable) -> bool:
    """Whether channels last is the faster layout for one client's steps."""
    taken = []
    for channels_last in (False, True):
        run = make(channels_last)
        run(1)
        taken.append(seconds(lambda run=run: run(1)))
    with contextlib.suppress(RuntimeError):
        torch.cuda.empty_cache()
    return taken[1] < taken[0]
