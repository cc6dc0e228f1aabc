"""Internal: the training step that every front shares: what it reads, updates, skips and saves."""
