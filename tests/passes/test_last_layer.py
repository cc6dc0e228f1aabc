"""The last layer of a whole network."""

from __future__ import annotations

import pytest

from mxmp.passes.decide import last_layer
from mxmp.rules import RULES
from mxmp.symbol import to_graph
from symbols import get_symbol

MAPS = ["conv4_3", "fc7", "extra1", "extra2", "extra3", "extra4"]


@pytest.mark.parametrize("train", [True, False])
def test_of_a_detector_it_is_the_prediction_heads(train):
    """Its default boxes come from the feature maps too, but from their shapes alone."""
    graph = to_graph(get_symbol("ssd300_vgg16", train=train))
    found = [graph.nodes[i] for i in last_layer(graph, RULES)]
    convolutions = {node.name for node in found if node.op == "Convolution"}
    assert convolutions == {f"{name}_{head}" for name in MAPS for head in ("cls", "loc")}
    assert sum(node.op == "Convolution" for node in graph.nodes) == 35
    assert {f"{name}_anchors" for name in MAPS} < {node.name for node in found}
