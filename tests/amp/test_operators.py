"""The lists of operators, against contrib.amp's and against what conversion does."""

from __future__ import annotations

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib import amp as contrib

from mxmp import amp
from mxmp.mxnet_private import operator_name
from mxmp.rules import RULES

LOW = ["float16", "bfloat16"]
LISTS = [amp.list_lp16_ops, amp.list_fp32_ops, amp.list_lp16_fp32_ops, amp.list_widest_type_cast]


@pytest.mark.behaviour("one list per operator")
@pytest.mark.parametrize("dtype", LOW)
def test_every_operator_stands_in_one_list(dtype):
    found = [op for each in LISTS for op in each(dtype)] + [op for op, *_ in amp.list_conditional_fp32_ops(dtype)]
    assert sorted(found) == sorted(RULES.ops())


def test_the_lists_hold_what_contrib_amps_hold():
    assert set(contrib.list_lp16_ops("float16")) <= set(amp.list_lp16_ops("float16"))
    assert set(contrib.list_lp16_ops(contrib.amp.bfloat16)) <= set(amp.list_lp16_ops("bfloat16"))
    assert set(contrib.list_loss_output_functions("float16")) < set(amp.list_loss_output_functions("float16"))


@pytest.mark.parametrize("module", ["symbol_fp16", "symbol_bf16"])
def test_the_modules_of_lists_have_contrib_amps_names_and_types(module):
    theirs, mine, dtype = getattr(contrib.lists, module), getattr(amp.lists, module), LOW[module == "symbol_bf16"]
    names = [name for name in vars(theirs) if name.isupper()]
    assert len(names) >= 6 and all(getattr(mine, name) for name in names)
    assert all(isinstance(getattr(mine, name), type(getattr(theirs, name))) for name in names)
    assert getattr(mine, f"{dtype[0].upper()}P16_FUNCS".replace("BP16", "BF16")) == amp.list_lp16_ops(dtype)
    assert mine.FP32_FUNCS == amp.list_fp32_ops(dtype)
    assert mine.CONDITIONAL_FP32_FUNCS == amp.list_conditional_fp32_ops(dtype)
    for copied in (copy.copy, copy.deepcopy, list, lambda each: pickle.loads(pickle.dumps(each))):
        changed = copied(mine.FP32_FUNCS)
        changed.remove("softmax")
        assert type(changed) is list and "softmax" in mine.FP32_FUNCS


@pytest.mark.parametrize("dtype", LOW)
def test_conditions_say_what_the_rules_say(dtype):
    for op, attribute, values in amp.list_conditional_fp32_ops(dtype):
        for value in values:
            rule = RULES.find(op, {attribute: value})
            assert rule.category == "deny" or dtype not in rule.dtypes
    assert ("Activation", "act_type") in [each[:2] for each in amp.list_conditional_fp32_ops(dtype)]


def test_inputs_that_are_never_cast():
    found = amp.list_lp16_use_fp32_params(np.float16)
    assert found["BatchNorm"] == contrib.list_lp16_use_fp32_params(contrib.amp.bfloat16)["BatchNorm"]
    assert found["pick"] == ["", "index"] and "softmax" not in found


@pytest.mark.parametrize("each", [*LISTS, amp.list_conditional_fp32_ops, amp.list_loss_output_functions])
def test_dtypes_of_every_spelling(each):
    assert each("float16") == each(np.float16) == each("fp16")
    assert each("bfloat16") == each(contrib.amp.bfloat16)


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
    assert f'"op": "{operator_name(alias)}"' in made.tojson()


@pytest.mark.parametrize("dtype", LOW)
def test_default_lists_given_as_lists_change_nothing(dtype):
    x = mx.sym.Activation(mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4), act_type="softrelu")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.linalg.gemm2(x, x), num_hidden=3), name="softmax")
    lists = amp.list_lp16_ops(dtype), amp.list_fp32_ops(dtype), amp.list_conditional_fp32_ops(dtype)
    given, default = amp.convert_symbol(net, dtype, *lists), amp.convert_symbol(net, dtype)
    assert given.tojson(remove_amp_cast=False) == default.tojson(remove_amp_cast=False)


def test_a_script_that_passes_changed_copies_of_lists():
    lists = amp.lists.symbol_fp16
    net = mx.sym.relu(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="act")
    converted = amp.convert_symbol(
        net, "float16", lists.FP16_FUNCS[:], [*lists.FP32_FUNCS, "relu"], lists.CONDITIONAL_FP32_FUNCS + []
    )
    assert converted.list_outputs() == ["act_output"]
    fc_cast = amp.convert_symbol(net, "float16", lists.FP16_FUNCS, lists.FP32_FUNCS).get_internals().list_outputs()
    assert "fc_output_cast_float32" not in fc_cast and type(lists.FP32_FUNCS + []) is list
