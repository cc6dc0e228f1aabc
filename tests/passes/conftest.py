"""What runs graphs of bfloat16 on any processor."""

import pytest

from mxmp.symbol import from_graph, rewrite, to_graph
from tests.passes.graphs import without_rounding


@pytest.fixture
def run(monkeypatch):
    """Graphs that ran on the CPU, whose casts to bfloat16 round nothing, so that any processor runs them."""

    def in_float32(*args, **options):
        graphs.append(to_graph(without_rounding(from_graph(emulated(*args, **options), None))))
        return graphs[-1]

    graphs, emulated = [], rewrite.emulated
    monkeypatch.setattr(rewrite, "emulated", in_float32)
    for front in ("gluon.conversion", "module.module"):
        monkeypatch.setattr(f"mxmp.{front}.require_bfloat16", lambda *args, **options: None)
    return graphs
