"""JSON of traces that differ in the versions of their entries."""

from __future__ import annotations

import mxnet as mx
import pytest

from mxmp.graph import from_json, without_versions


def network(mean, shape="(2, 3)", heads=1):
    """Return JSON of a network; each trace with the same running mean counts its version further."""
    x = mx.sym.var("x", attr={"note": '"inputs": [[1, 2, 3]]'})
    norm = mx.sym.BatchNorm(x, mx.sym.var("gamma"), mx.sym.var("beta"), mean, mx.sym.var("var"), name="norm")
    out = mx.sym.reshape(norm, shape=shape, name="out")
    many = mx.sym.concat(*[norm] * 12, dim=0, name="many")  # entries on lines of their own
    return mx.sym.Group([out, many][:heads]).tojson(remove_amp_cast=False)


@pytest.mark.parametrize("heads", [1, 2])
def test_another_trace_is_the_same(heads):
    mean = mx.sym.var("mean")
    texts = [network(mean, heads=heads) for _ in range(12)]  # up to versions of two digits
    assert len(set(texts)) == 12
    assert all(without_versions(from_json(text)) == without_versions(from_json(texts[0])) for text in texts)
