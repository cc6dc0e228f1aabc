"""Internal: passes for what a CPU runs: workarounds for defects of MXNet, layouts and kernels of oneDNN."""
