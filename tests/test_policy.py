"""The precision policy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxmp.errors import PolicyError
from mxmp.policy import PRESETS, Policy, check_matches


def test_presets_are_those_of_apex_and_keras():
    table = {
        "O0": ("float32", "float32", "float32", None),
        "O1": ("float32", "float16", "float32", "dynamic"),
        "O2": ("float16", "float16", "float32", "dynamic"),
        "O3": ("float16", "float16", "float32", None),
        "mixed_float16": ("float32", "float16", "float32", "dynamic"),
        "mixed_bfloat16": ("float32", "bfloat16", "float32", None),
        "float16": ("float16", "float16", "float16", None),
        "bfloat16": ("bfloat16", "bfloat16", "bfloat16", None),
        "float32": ("float32", "float32", "float32", None),
    }
    found = {
        name: (p.param_dtype, p.compute_dtype, p.output_dtype, p.loss_scale)
        for name in PRESETS
        for p in [Policy.parse(name)]
    }
    assert found == table


def test_parse_reads_fields_behind_a_preset():
    policy = Policy.parse("o2, loss_scale=128, keep_batchnorm_fp32=True, op:softmax=fp16, block:net0_*=float32")
    assert policy == Policy(
        param_dtype="float16",
        compute_dtype="float16",
        keep_batchnorm_fp32=True,
        ops={"softmax": "float16"},
        blocks={"net0_*": "float32"},
        loss_scale=128,
    )


def test_parse_ignores_spaces():
    assert Policy.parse(" O1 , block:x = float32 ") == Policy.parse("O1", blocks={"x": "float32"})


def test_parse_takes_overrides_and_policies():
    assert Policy.parse("O1", loss_scale=2).loss_scale == 2.0
    policy = Policy.parse("O1")
    assert Policy.parse(policy) is policy


def test_numpy_dtypes_are_accepted():
    assert Policy(compute_dtype=np.float16).compute_dtype == "float16"


_low = st.sampled_from(["float16", "bfloat16"])
_name = st.text(st.sampled_from("abcz_*?09.[]-"), min_size=1, max_size=8)


@st.composite
def policies(draw):
    low = draw(_low)
    dtype = st.sampled_from([low, "float32"])
    overrides = st.dictionaries(_name, dtype, max_size=3)
    return Policy(
        param_dtype=draw(dtype),
        compute_dtype=low,
        output_dtype=draw(dtype),
        keep_batchnorm_fp32=draw(st.booleans()),
        last_layer_fp32=draw(st.booleans()),
        pure=draw(st.booleans()),
        out_of_range=draw(st.sampled_from(["clamp", "float32"])),
        ops=draw(overrides),
        names=draw(overrides),
        blocks=draw(overrides),
        loss_scale=draw(st.one_of(st.none(), st.just("dynamic"), st.floats(2.0**-20, 2.0**30))),
    )


@given(policies())
def test_parse_inverts_print(policy):
    assert Policy.parse(str(policy)) == policy


def test_policy_is_a_value():
    assert hash(Policy.parse("O1")) == hash(Policy.parse("mixed_float16"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().compute_dtype = "float16"


BAD = {
    "unknown dtype in a string": (
        lambda: Policy.parse("compute=fp61"),
        "unknown dtype 'fp61'; expected float16, bfloat16 or float32 in policy 'compute=fp61'",
    ),
    "unknown dtype": (lambda: Policy(compute_dtype="fp61"), "compute_dtype: unknown dtype 'fp61'"),
    "not a precision": (lambda: Policy(compute_dtype="int8"), "compute_dtype='int8': expected float16"),
    "unknown preset": (
        lambda: Policy.parse("mixed_flaot16"),
        "unknown policy 'mixed_flaot16'; the nearest are mixed_float16",
    ),
    "unknown field": (
        lambda: Policy.parse("O1,keep_batchnorm=True"),
        "unknown field 'keep_batchnorm'; the nearest are keep_batchnorm_fp32",
    ),
    "unknown keyword": (
        lambda: Policy.parse("O1", los_scale=1),
        "unknown policy field 'los_scale'; the nearest are loss_scale",
    ),
    "not a pair": (lambda: Policy.parse("O1,O2"), "'O2' is no 'field=value' pair"),
    "unknown override": (lambda: Policy.parse("O1,ops:relu=float16"), "unknown override 'ops:relu'"),
    "not a flag": (lambda: Policy.parse("O1,pure=1"), "pure=1: expected True or False"),
    "not a string": (lambda: Policy.parse(16), "expected a policy or its name, such as 'O1'; found a int"),
    "params lower than compute": (
        lambda: Policy.parse("O2", compute_dtype="float32"),
        "param_dtype='float16' with compute_dtype='float32' makes no sense",
    ),
    "two low dtypes": (lambda: Policy(param_dtype="float16", compute_dtype="bfloat16"), "makes no sense"),
    "output in another": (
        lambda: Policy(compute_dtype="bfloat16", output_dtype="float16"),
        "output_dtype='float16' with compute_dtype='bfloat16' makes no sense",
    ),
    "batch norm in float32": (
        lambda: Policy.parse("O0", keep_batchnorm_fp32=True),
        "keep_batchnorm_fp32=True with compute_dtype='float32' makes no sense",
    ),
    "last layer in float32": (
        lambda: Policy.parse("O0,last_layer_fp32=True"),
        "last_layer_fp32=True with compute_dtype='float32' makes no sense",
    ),
    "last layer neither": (
        lambda: Policy.parse("O1,last_layer_fp32=yes"),
        "last_layer_fp32=yes: expected True or False",
    ),
    "pure float32": (lambda: Policy(pure=True), "pure=True with compute_dtype='float32'"),
    "loss scale in float32": (
        lambda: Policy.parse("O0", loss_scale="dynamic"),
        "loss_scale='dynamic' with compute_dtype='float32' makes no sense",
    ),
    "negative loss scale": (
        lambda: Policy.parse("O1", loss_scale=-1),
        "loss_scale=-1: expected None, 'dynamic' or a positive, finite number",
    ),
    "NaN loss scale": (lambda: Policy.parse("O1,loss_scale=nan"), "positive, finite"),
    "word as loss scale": (lambda: Policy.parse("O1", loss_scale="dynamc"), "loss_scale='dynamc'"),
    "override in another dtype": (
        lambda: Policy.parse("O1", ops={"softmax": "bfloat16"}),
        "ops: 'softmax' is set to bfloat16, but compute_dtype='float16'; use float16 or float32",
    ),
    "an override twice": (lambda: Policy.parse("O1,op:a=float16,op:a=float32"), "op 'a' is given twice"),
    "pattern with a comma": (lambda: Policy.parse("O1", names={"[a,b]*": "float32"}), "is no pattern of names"),
    "empty pattern": (lambda: Policy.parse("O1,block:=float32"), "unknown override 'block:'"),
    "overrides that are none": (lambda: Policy.parse("O1", ops=5), "ops=5: expected a dict or pairs"),
    "loss scale True": (lambda: Policy.parse("O1", loss_scale=True), "loss_scale=True: expected None"),
    "override without a dtype": (
        lambda: Policy.parse("O1", names={"a": "f99"}),
        r"names\['a'\]: unknown dtype 'f99'",
    ),
}


@pytest.mark.parametrize("make, message", BAD.values(), ids=BAD.keys())
def test_nonsense_is_refused(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


def test_override_precedence():
    policy = Policy.parse(
        "O1",
        ops={"Convolution": "float32"},
        blocks={"net0_stage1": "float16"},
        names={"*conv0*": "float32", "net0_stage1_conv0_fwd": "float16"},
    )
    assert policy.override("relu", "other_fwd") is None
    assert policy.override("Convolution", "net0_conv9_fwd") == ("float32", "op override 'Convolution'")
    assert policy.override("Convolution", "net0_stage1_conv1_fwd") == (
        "float16",
        "block override 'net0_stage1'",
    )
    assert policy.override("Convolution", "net0_stage2_conv0_fwd") == ("float32", "name override '*conv0*'")
    assert policy.override("Convolution", "net0_stage1_conv0_fwd") == (
        "float16",
        "name override 'net0_stage1_conv0_fwd'",
    )


@pytest.mark.parametrize("key", ["net0_stage1", "net0_stage1_", "net0_stage1_*", "*_stage1_"])
def test_block_patterns_take_a_name_or_a_prefix(key):
    policy = Policy.parse("O1", blocks={key: "float32"})
    assert policy.override("relu", "net0_stage1_relu0_fwd") is not None
    assert policy.override("relu", "net0_stage10_relu0_fwd") is None


NODES = [("Convolution", "net0_conv0_fwd"), ("softmax", "net0_softmax0")]


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"names": {"net0_conv1*": "float32"}},
            "names: 'net0_conv1\\*' matches no node; the nearest are net0_conv0_fwd",
        ),
        (
            {"blocks": {"net0_conv1_": "float32"}},
            "blocks: 'net0_conv1_' matches no block; the nearest are net0_conv0_",
        ),
        (
            {"ops": {"sofmax": "float32"}},
            "ops: the network has no operator 'sofmax'; the nearest are softmax",
        ),
    ],
)
def test_pattern_that_matches_nothing_is_an_error_with_the_nearest(changes, message):
    with pytest.raises(PolicyError, match=message):
        check_matches(Policy.parse("O1", **changes), NODES, ["net0_", "net0_conv0_"])


def test_patterns_that_match_pass():
    policy = Policy.parse("O1", names={"*conv?_fwd": "float32"}, blocks={"net0": "float16"}, ops={"softmax": "float32"})
    assert check_matches(policy, NODES) is None


def test_out_of_range_is_clamp_unless_told():
    assert Policy.parse("O2").out_of_range == "clamp"
    policy = Policy.parse("O2,out_of_range=float32")
    assert policy.out_of_range == "float32"
    assert "out_of_range=float32" in str(policy) and Policy.parse(str(policy)) == policy


def test_out_of_range_wants_a_known_choice():
    with pytest.raises(PolicyError, match="out_of_range='drop': expected 'clamp' or 'float32'"):
        Policy.parse("O2,out_of_range=drop")
