"""The lists of operators, against contrib.amp's and against what conversion does."""

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib import amp as contrib

from mxmp import amp

LISTS = [amp.list_lp16_ops, amp.list_fp32_ops, amp.list_lp16_fp32_ops, amp.list_widest_type_cast]


@pytest.mark.behaviour("one list per operator")
@pytest.mark.parametrize("dtype, spellings", [("float16", [np.float16, "fp16"]), ("bfloat16", [contrib.amp.bfloat16])])
def test_every_operator_stands_in_one_list(dtype, spellings):
    found = [op for each in LISTS for op in each(dtype)] + [op for op, *_ in amp.list_conditional_fp32_ops(dtype)]
    assert len(found) == len(set(found)) > 580  # each of MXNet's, as tests/rules/test_registry.py holds
    for each in [*LISTS, amp.list_conditional_fp32_ops, amp.list_loss_output_functions]:
        assert all(each(dtype) == each(spelling) for spelling in spellings)


def test_the_lists_hold_what_contrib_amps_hold():
    assert set(contrib.list_lp16_ops("float16")) <= set(amp.list_lp16_ops("float16"))
    assert set(contrib.list_lp16_ops(contrib.amp.bfloat16)) <= set(amp.list_lp16_ops("bfloat16"))
    assert ("Activation", "act_type", ["softrelu"]) in amp.list_conditional_fp32_ops("float16")
    assert set(contrib.list_loss_output_functions("float16")) < set(amp.list_loss_output_functions("float16"))


@pytest.mark.parametrize("module, dtype, low", [("symbol_fp16", "float16", "FP16_FUNCS"), ("symbol_bf16", "bfloat16", "BF16_FUNCS")])
def test_the_modules_of_lists_have_contrib_amps_names_and_types(module, dtype, low):
    theirs, mine = getattr(contrib.lists, module), getattr(amp.lists, module)
    names = [name for name in vars(theirs) if name.isupper()]
    assert len(names) >= 6 and all(getattr(mine, name) for name in names)
    assert all(isinstance(getattr(mine, name), type(getattr(theirs, name))) for name in names)
    assert getattr(mine, low) == amp.list_lp16_ops(dtype) and mine.FP32_FUNCS == amp.list_fp32_ops(dtype)
    assert mine.CONDITIONAL_FP32_FUNCS == amp.list_conditional_fp32_ops(dtype)
    for copied in (copy.copy, copy.deepcopy, list, lambda each: pickle.loads(pickle.dumps(each))):
        changed = copied(mine.FP32_FUNCS)
        changed.remove("softmax")
        assert type(changed) is list and "softmax" in mine.FP32_FUNCS


def test_inputs_that_are_never_cast():
    found = amp.list_lp16_use_fp32_params(np.float16)
    assert found["BatchNorm"] == contrib.list_lp16_use_fp32_params(contrib.amp.bfloat16)["BatchNorm"]
    assert found["pick"] == ["", "index"] and "softmax" not in found


def test_default_lists_and_changed_copies_given_as_lists():
    lists = amp.lists.symbol_fp16
    x = mx.sym.Activation(mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4), act_type="softrelu")
    x = mx.sym.relu(mx.sym.FullyConnected(x, num_hidden=3), name="act")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=3), name="softmax")
    default, given, changed = (
        amp.convert_symbol(net, "float16", *each)
        for each in (
            (),
            (lists.FP16_FUNCS[:], lists.FP32_FUNCS, lists.CONDITIONAL_FP32_FUNCS + []),
            (lists.FP16_FUNCS, [*lists.FP32_FUNCS, "relu"]),
        )
    )
    assert given.tojson(remove_amp_cast=False) == default.tojson(remove_amp_cast=False)
    cast = "act_output_cast_float16_output"
    assert cast in changed.get_internals().list_outputs() and cast not in default.get_internals().list_outputs()
