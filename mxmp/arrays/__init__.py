"""Internal: what is computed on NDArrays of any precision: casts, norms, finite checks."""
