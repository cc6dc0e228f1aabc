"""JSON of traces that differ in the versions of their entries."""

from __future__ import annotations

import json

import mxnet as mx
import pytest

from mxmp.graph import from_json, same_but_for_versions, without_versions


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
    assert all(same_but_for_versions(texts[0], text) for text in texts)
    assert all(without_versions(from_json(text)) == without_versions(from_json(texts[0])) for text in texts)


def test_another_attribute_is_another_network():
    mean = mx.sym.var("mean")
    assert not same_but_for_versions(network(mean), network(mean, shape="(3, 2)"))
    assert not same_but_for_versions(network(mean), network(mean, heads=2))


@pytest.mark.parametrize("entry", [[0, 0, 0], [1, 1, 0]], ids=["another node", "another output"])
@pytest.mark.parametrize("where", ["inputs", "heads"])
def test_another_entry_is_another_network(where, entry):
    changed = json.loads(network(mx.sym.var("mean")))
    (changed if where == "heads" else changed["nodes"][-1])[where] = [entry]
    text = network(mx.sym.var("mean"))
    assert not same_but_for_versions(text, _written(changed))


def test_a_version_in_a_text_counts():
    text = network(mx.sym.var("mean"))
    assert text != text.replace("[[1, 2, 3]]", "[[1, 2, 4]]")
    assert not same_but_for_versions(text, text.replace("[[1, 2, 3]]", "[[1, 2, 4]]"))


def _written(graph):
    """Return JSON as MXNet writes it."""
    return mx.sym.load_json(json.dumps(graph)).tojson(remove_amp_cast=False)
