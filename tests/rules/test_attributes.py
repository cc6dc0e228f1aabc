"""Attributes in every spelling that MXNet takes: Python's lists, numbers for one axis, booleans as words and digits."""

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp.rules.core import flag_of, sizes_of, value_of
from mxmp.symbol import to_graph
from tests.passes.graphs import converted
from tests.processors import AMD

SIZES = {"(3, 3)": (3, 3), "[3, 3]": (3, 3), "(3L, 3L)": (3, 3), "3": (3,), "(3,)": (3,), "[3]": (3,), "()": (), "None": ()}
FLAGS = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}


@pytest.mark.parametrize(("text", "sizes"), SIZES.items())
def test_sizes_are_a_tuple(text, sizes):
    assert sizes_of({"kernel": text}, "kernel") == sizes and sizes_of({}, "kernel") == ()
    assert not isinstance(value_of({"kernel": text}, "kernel"), list)


@pytest.mark.parametrize(("text", "flag"), FLAGS.items())
def test_flags_are_a_bool(text, flag):
    assert flag_of({"no_bias": text}, "no_bias", not flag) is flag
    assert flag_of({}, "no_bias", flag) is flag
    mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, no_bias=text)  # MXNet takes it


def spelled(kernel, pad):
    """Return a network of a convolution and a max pooling whose sizes are given in one spelling."""
    data = mx.sym.Convolution(mx.sym.var("data"), num_filter=20, kernel=kernel, pad=pad, name="conv")
    return mx.sym.Reshape(mx.sym.Activation(data, act_type="relu"), shape=(0, -1)) * 1


@pytest.mark.parametrize("trains", [False, True], ids=["infers", "trains"])
@pytest.mark.parametrize(
    "shape, tuples, others",
    [((4, 64, 24, 24), ((3, 3), (1, 1)), [([3, 3], [1, 1])]), ((8, 192, 400), ((3,), (1,)), [(3, 1), ([3], [1])])],
    ids=["two axes", "one axis"],
)
def test_the_graph_that_runs_does_not_depend_on_the_spelling(shape, tuples, others, trains, on_processor):
    on_processor(AMD)

    def operators(sizes):
        graph = to_graph(converted(spelled(*sizes), {"data": shape}, "mixed_bfloat16").on_cpu(trains))
        return [(node.op, node.get("num_filter")) for node in graph.nodes]

    assert ("Convolution", "32") in operators(tuples)
    assert all(operators(each) == operators(tuples) for each in others)


@pytest.mark.parametrize("fixed", ["True", "true", "1"])
def test_a_fixed_gamma_is_known_in_each_spelling(fixed):
    data = mx.sym.BatchNorm(mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(1, 1), name="c"), fix_gamma=fixed, name="b")
    arrays = {"c_weight": (4, 3, 1, 1), "c_bias": (4,), "b_gamma": (4,), "b_beta": (4,)}
    args = {name: mx.nd.full(shape, 2.0) for name, shape in arrays.items()}
    aux = {"b_moving_mean": mx.nd.zeros(4), "b_moving_var": mx.nd.ones(4)}
    folded = mxmp.symbol.convert_model(data, args, aux, "float32", for_inference=True)
    np.testing.assert_allclose(folded.arg_params["c_weight"].asnumpy(), 2 / np.sqrt(1.001), rtol=1e-6)  # and not 4
