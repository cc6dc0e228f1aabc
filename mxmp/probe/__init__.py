"""Internal: runs a network's graph and looks at each of its nodes: values, gradients, errors."""
