"""Internal: the training step of every front: loss scaling, float32 masters, exact skips, states that resume."""
