"""Deep equilibrium layers: solvers, implicit gradients, regularisers, a projection, and a report on a layer.

Of the rest of the package it imports only `util`.
"""

from fedlab_lite.deq.diagnostics import GradientRow, Report, SolverRow, report
from fedlab_lite.deq.driver import Inverse, Solution
from fedlab_lite.deq.implicit import GRADIENTS, adjoint_residual, equilibrium
from fedlab_lite.deq.projection import project_linf
from fedlab_lite.deq.regularisers import jacobian_norm, spectral_radius
from fedlab_lite.deq.solvers import SOLVERS, anderson, broyden, fixed_point
