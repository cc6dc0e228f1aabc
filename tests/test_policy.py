"""The precision policy."""

import dataclasses
import fnmatch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxmp import Policy
from mxmp.errors import LossScaleError, PolicyError
from mxmp.loss_scale import parse


def test_presets_are_those_of_apex_and_keras():
    full, half, brain = "float32", "float16", "bfloat16"
    table = {
        "O0": (full, full, full, None),
        "O1": (full, half, full, "dynamic"),
        "O2": (half, half, full, "dynamic"),
        "O3": (half, half, full, None),
        "mixed_float16": (full, half, full, "dynamic"),
        "mixed_bfloat16": (full, brain, full, None),
        "float16": (half, half, half, None),
        "bfloat16": (brain, brain, brain, None),
        "float32": (full, full, full, None),
    }
    found = {name: Policy.parse(name) for name in table}
    assert {n: (p.param_dtype, p.compute_dtype, p.output_dtype, p.loss_scale) for n, p in found.items()} == table


@pytest.mark.parametrize(
    "name, preset",
    [
        ("fp16", "mixed_float16"), ("half", "mixed_float16"), ("mixed_fp16", "mixed_float16"), ("16-mixed", "mixed_float16"),
        ("bf16", "mixed_bfloat16"), ("BF16", "mixed_bfloat16"), ("bf16-mixed", "mixed_bfloat16"), ("fp32", "float32"),
    ],
)  # fmt: skip
def test_the_short_names_of_other_toolkits_are_policies(name, preset):
    assert Policy.parse(name) == Policy.parse(preset)


def test_parse_reads_fields_behind_a_preset_and_ignores_spaces():
    policy = Policy.parse("o2, loss_scale=128, keep_batchnorm_fp32=True, op:softmax=fp16, block:net0_* = float32 ")
    dtypes = {"param_dtype": "float16", "compute_dtype": "float16", "keep_batchnorm_fp32": True}
    assert policy == Policy(**dtypes, ops={"softmax": "float16"}, blocks={"net0_*": "float32"}, loss_scale=128)
    assert Policy.parse("fp16,output=half,op:exp=fp16") == Policy.parse("O1,output=float16,op:exp=float16")


def test_parse_takes_the_last_value_of_a_field():
    assert Policy.parse("O1,output=float16,output=float32") == Policy.parse("O1")


def test_parse_takes_overrides_policies_and_dtypes_of_numpy():
    policy = Policy.parse("O1")
    assert Policy.parse("O1", loss_scale=2).loss_scale == 2.0 and Policy.parse(policy) is policy
    assert Policy(compute_dtype="bf16").compute_dtype == "bfloat16" and Policy(compute_dtype=np.float16).compute_dtype == "float16"


_name = st.text(st.sampled_from("abcz_*?09.[]-"), min_size=1, max_size=8)


@st.composite
def policies(draw):
    low = draw(st.sampled_from(["float16", "bfloat16"]))
    dtype = st.sampled_from([low, "float32"])
    fields = {
        **dict.fromkeys(("param_dtype", "output_dtype"), dtype),
        **dict.fromkeys(("keep_batchnorm_fp32", "last_layer_fp32", "pure"), st.booleans()),
        **dict.fromkeys(("ops", "names", "blocks"), st.dictionaries(_name, dtype, max_size=3)),
        "out_of_range": st.sampled_from(["clamp", "float32"]),
        "loss_scale": st.one_of(st.none(), st.just("dynamic"), st.floats(2.0**-20, 2.0**30)),
    }
    return Policy(compute_dtype=low, **draw(st.fixed_dictionaries(fields)))


@settings(deadline=None)
@given(policies())
def test_parse_inverts_print(policy):
    assert Policy.parse(str(policy)) == policy


def test_policy_is_a_value():
    assert hash(Policy.parse("O1")) == hash(Policy.parse("mixed_float16")) and Policy.parse("O2").out_of_range == "clamp"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().compute_dtype = "float16"


@pytest.mark.parametrize(
    "scale", [None, "dynamic", "Dynamic", 1.0, 128, "128", 2.0**-126, 2.0**126, 2.0**-127, 2.0**127, 0, "fast"]
)
def test_it_takes_the_loss_scales_that_trainers_take(scale):
    def taken(take):
        try:
            return take()
        except (PolicyError, LossScaleError):
            return "refused"

    found = taken(lambda: parse(Policy.parse("O1", loss_scale=scale).loss_scale))
    assert found == taken(lambda: parse(scale))


def test_override_precedence():
    names = {"*conv0*": "float32", "net0_stage1_conv0_fwd": "float16"}
    policy = Policy.parse("O1", ops={"Convolution": "float32"}, blocks={"net0_stage1": "float16"}, names=names)
    expected = {
        ("relu", "other_fwd"): None,
        ("Convolution", "net0_conv9_fwd"): ("float32", "op override 'Convolution'"),
        ("Convolution", "net0_stage1_conv1_fwd"): ("float16", "block override 'net0_stage1'"),
        ("Convolution", "net0_stage2_conv0_fwd"): ("float32", "name override '*conv0*'"),
        ("Convolution", "net0_stage1_conv0_fwd"): ("float16", "name override 'net0_stage1_conv0_fwd'"),
    }
    assert {node: policy.override(*node) for node in expected} == expected


@pytest.mark.parametrize("key", ["net0_stage1", "net0_stage1_", "net0_stage1_*", "*_stage1_"])
def test_block_patterns_take_a_name_or_a_prefix(key):
    policy = Policy.parse("O1", blocks={key: "float32"})
    assert policy.override("relu", "net0_stage1_relu0_fwd") is not None
    assert policy.override("relu", "net0_stage10_relu0_fwd") is None


def test_the_longest_prefix_of_a_block_decides():
    policy = Policy.parse("O1", blocks={"net0": "float16", "net0_stage1": "float32", "net0_stage?": "float16"})
    assert policy.override("relu", "net0_stage1_relu0_fwd") == ("float16", "block override 'net0_stage?'")
    policy = Policy.parse("O1", blocks={"net0": "float16", "net0_stage1": "float32"})
    assert policy.override("relu", "net0_stage1_relu0_fwd") == ("float32", "block override 'net0_stage1'")


def test_a_notebook_shows_the_fields_that_are_set():
    text = Policy.parse("O2,name:*<b>*=float32")._repr_html_().replace("<wbr>", "")  # where a browser may break a line
    assert "<dt>compute_dtype</dt><dd>float16</dd>" in text and "*&lt;b&gt;*: float32" in text
    assert "pure" not in text and text.startswith('<div class="mxmp')


def test_of_several_names_that_match_low_precision_decides_else_the_first():
    names = {"fc1": "float32", "fc*": "float32", "fc[12]": "float16", "fc2": "float16", "c?nv": "float32"}
    found = Policy.parse("O1", names=names)
    for name in ("fc1", "fc2", "fc3", "conv", "canv", "pool"):
        matching = [dtype for pattern, dtype in names.items() if fnmatch.fnmatchcase(name, pattern)]
        expected = None if not matching else "float16" if "float16" in matching else "float32"
        assert (found.override("any", name) or (None,))[0] == expected
