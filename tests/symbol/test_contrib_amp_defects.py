"""Defects of ``mxnet.contrib.amp`` in MXNet 1.9.1: each test shows it there, and that mxmp has it not.

MXNet has no float16 matrix products on CPU, so contrib.amp's graphs are checked by type inference, which
is what binding runs first.
"""

from __future__ import annotations

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib import amp

from mxmp import Policy
from mxmp.symbol import convert_graph, convert_model
from tests.symbol import small
from tests.symbol.measure import nodes_of

X = {"x": (3, 4)}


dense = functools.partial(small.dense, hidden=4)


def params_of(symbol, inputs=("x",), **shapes):
    """Return weights of 0.1."""
    args, _, _ = symbol.infer_shape(**(shapes or X))
    return {n: mx.nd.full(s, 0.1) for n, s in zip(symbol.list_arguments(), args) if n not in inputs}


def raises_type_error():
    return pytest.raises(mx.MXNetError, match="expected float(16|32|64), got float(16|32|64)")


# 19
@pytest.mark.parametrize("excluded", ["a", "b"])
def test_a_weight_shared_with_an_excluded_layer_binds(excluded):
    weight, x = mx.sym.var("weight"), mx.sym.var("x")
    net = mx.sym.Group([dense(x, "a", weight), dense(x, "b", weight)])
    with raises_type_error():
        amp.convert_model(net, params_of(net), {}, cast_optional_params=True, excluded_sym_names=[excluded])
    ours = convert_model(net, params_of(net), {}, f"O2,name:{excluded}=float32", X)
    assert small.type_checks(ours.symbol, ours.arg_params)
    assert ours.arg_params["weight"].dtype == np.float32


# 20
def test_float32_operators_never_read_a_stored_float16_weight():
    weight, x = mx.sym.var("weight"), mx.sym.var("x")
    net = mx.sym.Group([dense(x, weight=weight), mx.sym.exp(weight, name="exp")])
    theirs, args, _ = amp.convert_model(net, params_of(net), {}, cast_optional_params=True)
    assert "exp" in amp.list_fp32_ops("float16")
    assert theirs.get_internals()["exp_output"].infer_type(weight=args["weight"].dtype)[1] == [np.float16]
    ours = convert_model(net, params_of(net), {}, "O2", X)
    types = {"weight": ours.arg_params["weight"].dtype}
    assert ours.symbol.get_internals()["exp_output"].infer_type(**types)[1] == [np.float32]


# 23
def test_indices_are_not_rounded():
    net = mx.sym.Embedding(mx.sym.var("ids"), mx.sym.var("weight"), input_dim=3000, output_dim=1, name="embed")
    values = {"ids": mx.nd.array([2049]), "weight": mx.nd.arange(3000).reshape((3000, 1)) % 2048}
    theirs = amp.convert_symbol(net, target_dtype_ops=["Embedding"])
    assert theirs.bind(mx.cpu(), values).forward()[0].asscalar() == 0  # row 2048
    ours = convert_graph(net, Policy.parse("O1,op:Embedding=float16"), {"ids": (1,)}, {"ids": "float32"})
    assert [row.precision for row in ours.report.rows] == ["float16"]
    assert ours.on_cpu().bind(mx.cpu(), values).forward()[0].asscalar() == 1  # row 2049


# 24
@pytest.mark.parametrize("stored", [False, True])
def test_saving_keeps_all_casts(stored, tmp_path):
    net, file = dense(mx.sym.var("x")), str(tmp_path / "net.json")
    theirs, args, _ = amp.convert_model(net, params_of(net), {}, cast_optional_params=stored)
    theirs.save(file)
    assert [node["op"] for node in nodes_of(mx.sym.load(file))][-1] == "amp_cast"  # the output's
    assert len(nodes_of(mx.sym.load(file))) < len(nodes_of(theirs))
    if stored:
        with raises_type_error():
            small.type_checks(mx.sym.load(file), args)
    ours = convert_model(net, params_of(net), {}, "O2" if stored else "O1", X)
    ours.symbol.save(file)
    assert nodes_of(mx.sym.load(file)) == nodes_of(ours.symbol)
    assert small.type_checks(mx.sym.load(file), ours.arg_params)
