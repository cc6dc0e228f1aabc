"""A checkpoint with the states that the next batch starts from."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from tests.examples.word_lm.small import CPU, TWO, arrays, learner

KINDS = ("gluon", "module")


def together(found):
    """Return both states of a learner, of all contexts."""
    return [np.concatenate([p.asnumpy() for p in parts], axis=1) for parts in zip(*found.states)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("first", "second"), [(CPU, TWO), (TWO, CPU)], ids=["to two", "to one"])
def test_states_go_with_the_parameters_to_other_contexts(kind, first, second, tmp_path):
    one, batches, _ = learner(kind, ctx=first)
    one.step(batches[0])
    two, _, _ = learner(kind, ctx=second)
    one.parts["model"].save_params(str(tmp_path / "params"))
    two.parts["model"].load_params(str(tmp_path / "params"))
    assert all(state.any() for state in together(one))
    for expected, found in zip(together(one), together(two)):
        np.testing.assert_array_equal(found, expected)
    if kind == "gluon":  # a module spreads them by itself
        assert [[state.context for state in states] for states in two.states] == [[ctx] * 2 for ctx in second]
    for name, value in arrays(one).items():
        np.testing.assert_array_equal(arrays(two)[name], value, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_before_the_first_batch_has_no_states(kind, tmp_path):
    found, _, _ = learner(kind)
    part = found.parts["model"]
    part.save_params(str(tmp_path / "params"))
    part.load_params(str(tmp_path / "params"))
    assert found.states == []
    assert not [name for name in mx.nd.load(str(tmp_path / "params")) if name.startswith("state")]


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_leaves_the_states_alone(kind):
    found, batches, held_out = learner(kind)
    found.step(batches[0])
    before = together(found)
    found.evaluate(held_out)
    for expected, state in zip(before, together(found)):
        np.testing.assert_array_equal(state, expected)
