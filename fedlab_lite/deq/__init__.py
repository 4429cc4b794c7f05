"""Deep equilibrium layers: solvers, gradients, regularisers, parametrisations with an equilibrium, and a report.

Of the rest of the package it imports only `util`.
"""

from fedlab_lite.deq.diagnostics import GradientRow, Report, SolverRow, report
from fedlab_lite.deq.driver import Inverse, Solution
from fedlab_lite.deq.implicit import GRADIENTS, adjoint_residual, equilibrium
from fedlab_lite.deq.monotone import monotone, peaceman_rachford, splitting
from fedlab_lite.deq.projection import normalise_spectral, project_linf
from fedlab_lite.deq.regularisers import jacobian_norm, spectral_radius
from fedlab_lite.deq.solvers import SOLVERS, anderson, broyden, fixed_point
