"""The engine of every algorithm: problems, local training, messages, averages, rounds and their evaluation.

`Problem` holds what is trained on, `Algorithm` is the contract, `train` runs the rounds, and `History` has the results.
"""

from fedlab_lite.engine.algorithm import MOMENTS, Algorithm, Models, numbers_of, optimizers_of
from fedlab_lite.engine.averaging import FUSIONS, average, check_mixing, fusion_weights, mix, spectral_gap
from fedlab_lite.engine.channel import Channel
from fedlab_lite.engine.clients import for_clients, rows_of
from fedlab_lite.engine.curves import Progress
from fedlab_lite.engine.devices import broadcast, combine, put_on_devices, replicated, to_host
from fedlab_lite.engine.evaluation import (
    bigram_answer,
    constant_loss,
    evaluate,
    has_own_models,
    majority_baseline,
    message_bytes,
    message_count,
    own_majority,
)
from fedlab_lite.engine.graphs import GRAPHS, Graph, make_graph
from fedlab_lite.engine.groups import in_groups
from fedlab_lite.engine.history import History
from fedlab_lite.engine.local import Batch, ClientData, fit_head, in_chunks, length_of, local_train
from fedlab_lite.engine.privacy import epsilon_of, gaussian_noise_multiplier, noise_multiplier_for
from fedlab_lite.engine.problem import Problem, RoundContext
from fedlab_lite.engine.saved import load, save
from fedlab_lite.engine.saved_model import SavedModel
from fedlab_lite.engine.shown import mean_and_band
from fedlab_lite.engine.task import NextCharacter, Task
from fedlab_lite.engine.training import Plan, advance, place_problem, places, train
from fedlab_lite.util.jax_setup import describe_machine, setup
