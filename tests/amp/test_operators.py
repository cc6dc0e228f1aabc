"""The lists of operators, against contrib.amp's and against what conversion does."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib import amp as contrib

from mxmp import amp
from mxmp.amp.operators import canonical_op
from mxmp.rules import RULES

LOW = ["float16", "bfloat16"]
LISTS = [amp.list_lp16_ops, amp.list_fp32_ops, amp.list_lp16_fp32_ops, amp.list_widest_type_cast]


@pytest.mark.parametrize("dtype", LOW)
def test_every_operator_stands_in_one_list(dtype):
    found = [op for each in LISTS for op in each(dtype)] + [op for op, *_ in amp.list_conditional_fp32_ops(dtype)]
    assert sorted(found) == sorted(RULES.ops())


def test_what_contrib_amp_runs_in_low_precision():
    assert set(contrib.list_lp16_ops("float16")) <= set(amp.list_lp16_ops("float16"))
    assert set(contrib.list_lp16_ops(contrib.amp.bfloat16)) <= set(amp.list_lp16_ops("bfloat16"))


@pytest.mark.parametrize("dtype", LOW)
def test_conditions_say_what_the_rules_say(dtype):
    for op, attribute, values in amp.list_conditional_fp32_ops(dtype):
        for value in values:
            rule = RULES.find(op, {attribute: value})
            assert rule.category == "deny" or dtype not in rule.dtypes
    assert ("Activation", "act_type") in [each[:2] for each in amp.list_conditional_fp32_ops(dtype)]


def test_loss_heads():
    assert set(contrib.list_loss_output_functions("float16")) < set(amp.list_loss_output_functions("float16"))


def test_inputs_that_are_never_cast():
    found = amp.list_lp16_use_fp32_params(np.float16)
    assert found["BatchNorm"] == contrib.list_lp16_use_fp32_params(contrib.amp.bfloat16)["BatchNorm"]
    assert found["pick"] == ["", "index"] and "softmax" not in found


@pytest.mark.parametrize("each", [*LISTS, amp.list_conditional_fp32_ops, amp.list_loss_output_functions])
def test_dtypes_of_every_spelling(each):
    assert each("float16") == each(np.float16) == each("fp16")
    assert each("bfloat16") == each(contrib.amp.bfloat16)
    with pytest.raises(AssertionError, match="expected float16 or bfloat16"):
        each("int8")


@pytest.mark.parametrize("alias", ["concat", "_Plus", "linalg_gemm2", "_sparse_exp", "Flatten"])
def test_other_names_of_operators(alias):
    x, y = mx.sym.var("x"), mx.sym.var("y")
    made = {
        "concat": lambda: mx.sym.concat(x, y),
        "_Plus": lambda: mx.sym._internal._Plus(x, y),
        "linalg_gemm2": lambda: mx.sym.linalg.gemm2(x, y),
        "_sparse_exp": lambda: mx.sym.sparse.exp(x),
        "Flatten": lambda: mx.sym.Flatten(x),
    }[alias]()
    assert f'"op": "{canonical_op("ops", alias)}"' in made.tojson()


@pytest.mark.parametrize("dtype", LOW)
def test_default_lists_given_as_lists_change_nothing(dtype):
    x = mx.sym.Activation(mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4), act_type="softrelu")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.linalg.gemm2(x, x), num_hidden=3), name="softmax")
    lists = amp.list_lp16_ops(dtype), amp.list_fp32_ops(dtype), amp.list_conditional_fp32_ops(dtype)
    given, default = amp.convert_symbol(net, dtype, *lists), amp.convert_symbol(net, dtype)
    assert given.tojson(remove_amp_cast=False) == default.tojson(remove_amp_cast=False)
