"""Plotting functions: figure style, curves, panels per client, sweeps and layer tables.

No number that a verdict needs is computed here; `spread` and `summary` put numbers into the form of `save_figure`.
"""

from fedlab_lite.engine import mean_and_band
from fedlab_lite.plots.clients import client_panels, holdings, label_counts
from fedlab_lite.plots.equilibrium import equilibrium_report
from fedlab_lite.plots.layer_tables import layer_bars, part_bars
from fedlab_lite.plots.style import (
    LOOKS,
    WIDTH,
    accuracy_and_gap,
    both_moments,
    client_distribution,
    comparison,
    constant_line,
    curves,
    device_curves,
    heading,
    look,
    mean_and_dots,
    name_diverged,
    printed,
    shared_legend,
    spread,
    summary,
    summary_at_moments,
    use_style,
)
from fedlab_lite.plots.sweeps import DATA, NETWORKS, by_column, division, federation, sweep_curves
