"""Internal: passes for graphs that run on a CPU: workarounds for defects of MXNet, layouts and kernels of oneDNN."""
