"""The contestant that is pfl-research. Needs the extra `bench` and, pfl's own condition, Python below 3.13."""

import copy
import itertools
from collections.abc import Callable

import client_steps
import torch
from peers_torch import network, tensors
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn.functional import cross_entropy


class PFLNetwork(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.model(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}


def pfl_round(workload: client_steps.Workload) -> Callable[[], None]:
    """One central iteration of FederatedAveraging in pfl's simulation, in one process.

    pfl does not shuffle rows, which spares it the shuffles of ours. It evaluates every `evaluation_frequency`
    iterations: here in the very first one alone, which is not timed.
    """
    module = PFLNetwork(network(workload))
    start = copy.deepcopy(module.state_dict())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    clients = dict(enumerate(tensors(workload)))
    sampler = get_user_sampler("minimize_reuse", list(clients))
    dataset = FederatedDataset(lambda client: PyTorchTensorDataset(clients[client], user_id=str(client)), sampler)
    backend = SimulatedBackend(training_data=dataset, val_data=dataset)
    algorithm = FederatedAveraging()
    local = NNTrainHyperParams(
        local_num_epochs=workload.epochs,
        local_learning_rate=client_steps.LR,
        local_batch_size=workload.batch_size,
    )
    iterations = itertools.count(1)

    def run():
        module.load_state_dict(start)  # as in `torch_steps`
        params = NNAlgorithmParams(
            central_num_iterations=next(iterations),
            evaluation_frequency=10**9,
            train_cohort_size=workload.num_clients,
            val_cohort_size=0,
        )
        algorithm.run(params, backend, model, local, send_metrics_to_platform=False)

    return run
