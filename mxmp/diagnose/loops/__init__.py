"""Internal: what is wrong with a training loop, seen while it runs for two steps that do not count."""
