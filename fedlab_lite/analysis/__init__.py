"""Measurements used by a few notebooks: similarity of representations, membership inference, speed-up and others.

No function here trains a method or decides a verdict.
"""

from fedlab_lite.analysis.cka import common_rows, layer_similarity, linear_cka
from fedlab_lite.analysis.gossip_error import hump, predicted
from fedlab_lite.analysis.last_round import after_last_round, tune_head, tune_head_and_extractor
from fedlab_lite.analysis.layer_tables import compare_layers, follow, shapes
from fedlab_lite.analysis.membership import advantage_bound, membership_advantage, row_losses
from fedlab_lite.analysis.new_workers import redeal, representation_of, with_fresh_heads
from fedlab_lite.analysis.ranks import rank_correlation
from fedlab_lite.analysis.speedup import SpeedUp, local_steps, rounds_to, seconds_a_round, slope, slope_error, speed_up
