"""Deep equilibrium layers: fixed-point solvers, gradients through them, the l-infinity ball and diagnostics."""
