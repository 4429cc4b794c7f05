"""What several algorithms share: gossip over a graph, personal heads, variance-reduced gradients, and small solvers.

An algorithm calls these; its own file stays readable beside the paper's pseudo-code.
"""

from fedlab_lite.algorithms.parts.feature_distance import distance, features_of, measured
from fedlab_lite.algorithms.parts.gossip import (
    MIXING,
    Decentralised,
    Gossip,
    OnGraph,
    averaged,
    disagreement,
    mean_of,
    project_all,
)
from fedlab_lite.algorithms.parts.personal_head import PartialPersonalisation, alternate
from fedlab_lite.algorithms.parts.simplex_qp import simplex_minimum
from fedlab_lite.algorithms.parts.svrg import mean_gradient, random_batch, reduced
