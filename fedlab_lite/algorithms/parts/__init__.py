"""Parts that several algorithms share: the server's step, gossip, distillation, personal heads, small solvers.

An algorithm calls these, so that its own file stays readable beside the paper's pseudo-code.
"""

from fedlab_lite.algorithms.parts.consensus import distance, features_of, mean_gradient, measured, random_batch, reduced
from fedlab_lite.algorithms.parts.distillation import OUTPUTS, SHARES, check_shared_set, distill, distillation_round
from fedlab_lite.algorithms.parts.gossip import (
    MIXING,
    Decentralised,
    averaged,
    check_graph,
    check_matrix,
    disagreement,
    distances,
    mean_of,
    mixed,
    project_all,
)
from fedlab_lite.algorithms.parts.personal_head import PartialPersonalisation, alternate, body_round
from fedlab_lite.algorithms.parts.server import fedopt, server_start, server_step
