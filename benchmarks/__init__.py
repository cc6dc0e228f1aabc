"""How fast mxmp is beside MXNet, contrib.amp and others: ``python -m benchmarks --help``."""
