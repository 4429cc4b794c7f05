"""Deep equilibrium layers: solvers, implicit gradients, projections and diagnostics.

This room needs nothing else of the package.
"""

from fedlab_lite.deq.driver import Solution
from fedlab_lite.deq.implicit import GRADIENTS, equilibrium
from fedlab_lite.deq.projection import project_linf
from fedlab_lite.deq.solvers import SOLVERS, anderson, broyden, fixed_point
