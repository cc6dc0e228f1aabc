"""Measurements of mxmp, each a module that runs with ``python -m`` and writes JSON, a table and a plot."""

import mxmp  # noqa: F401  # before the benchmarks import MXNet, which needs it on a new numpy or Python
