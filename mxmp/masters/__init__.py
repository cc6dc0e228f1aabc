"""Internal: float32 master copies of low precision weights, and the optimizer that keeps them."""
