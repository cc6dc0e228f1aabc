"""Internal: loss scaling: the scale of a step, what losses are multiplied by, and what is refused."""
