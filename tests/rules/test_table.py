"""The table against the installed MXNet, so that it cannot drift from it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import chain, combinations
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon.model_zoo import vision

from mxmp import dtypes
from mxmp.passes.facts import CAST_OPS
from mxmp.rules import RULES
from tests.rules.examples import EXAMPLES, Example
from tests.rules.run_examples import build, output_dtypes, relative_errors, run

ROOT = Path(__file__).parents[2]
BFLOAT16_EPS = dtypes.limits(dtypes.BFLOAT16).eps

LOW_CALLS = [(example, dtype) for example in EXAMPLES for dtype in sorted(example.rule.dtypes)]
SOUND = [n for n, example in enumerate(EXAMPLES) if dtypes.BFLOAT16 in example.rule.dtypes]
EXCLUDED = sorted(set(range(len(EXAMPLES))) - set(SOUND))


def ids(value):
    return str(value) if isinstance(value, (Example, str)) else None


def test_every_rule_has_an_example():
    shown = {id(example.rule) for example in EXAMPLES}
    assert [f"{rule.op} {dict(rule.when)}" for rule in RULES if id(rule) not in shown] == []


@pytest.mark.parametrize("op", sorted(RULES.ops()))
def test_mxnet_has_the_operator_under_that_name(op):
    example = next(example for example in EXAMPLES if example.op == op)
    nodes = json.loads(build(example, "float32").tojson(remove_amp_cast=False))["nodes"]
    assert nodes[-1]["op"] == op  # an alias would read differently


@pytest.mark.parametrize("example, dtype", LOW_CALLS, ids=ids)
def test_mxnet_accepts_the_ports_and_gives_the_outputs_that_the_rule_says(example, dtype):
    rule = example.rule
    before = output_dtypes(build(example, dtypes.FLOAT32))
    expected = [was if index in rule.keep_outputs else dtype for index, was in enumerate(before)]
    indifferent = [port for port in rule.any if port < len(example.shapes)]
    for chosen in chain.from_iterable(combinations(indifferent, n) for n in range(len(indifferent) + 1)):
        assert output_dtypes(build(example, dtype, [*example.data_ports, *chosen])) == expected


# Type inference lets these inputs have a dtype of their own, but more is at stake.
AGREE = {
    "amp_multicast": "casts them all to the widest",
    "_contrib_BilinearResize2D": "its backward pass fails with 'data type do not match specified type'",
}


@pytest.mark.parametrize(
    "example",
    [e for e in EXAMPLES if len(e.data_ports) > 1 and "float16" in e.rule.dtypes and e.op not in AGREE],
    ids=str,
)
def test_inputs_that_are_cast_must_agree(example):
    for port in example.data_ports:
        with pytest.raises((mx.MXNetError, UserWarning)):  # UserWarning: 'Cannot decide type'
            output_dtypes(build(example, "float16", set(example.data_ports) - {port}))


REFUSED = """InstanceNorm SoftmaxOutput SVMOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput
softmax_cross_entropy _contrib_MultiBoxPrior _contrib_MultiBoxTarget _contrib_MultiBoxDetection _contrib_Proposal
_contrib_MultiProposal _contrib_ROIAlign ROIPooling""".split()


@pytest.mark.parametrize("op", REFUSED)
def test_mxnet_refuses_low_precision_where_the_rule_has_none(op):
    example = next(example for example in EXAMPLES if example.op == op)
    assert example.rule.dtypes == frozenset()
    for dtype in dtypes.LOW_PRECISION:
        with pytest.raises(mx.MXNetError):
            output_dtypes(build(example, dtype))


@pytest.fixture(scope="module")
def bfloat16_runs():
    """What each example with a bfloat16 kernel gave, from one other process."""
    return examples_in_a_process("sound")


def run_examples(which, first=0):
    """Return the rows of one process by example, and the example at which it died or None."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.rules.run_examples", which, str(first)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=240)
    numbers, rows = ([json.loads(line) for line in done.stdout.splitlines()[start::2]] for start in (0, 1))
    assert numbers, f"ended with {done.returncode} before the first example"
    return dict(zip(numbers, rows)), (numbers[-1] if done.returncode else None)


def examples_in_a_process(which):
    rows, died = run_examples(which)
    assert died is None, f"died at {EXAMPLES[died]}"
    return rows


def examples_in_processes(which):
    """As above, with a new process behind each example that kills one."""
    rows, died = run_examples(which)
    while died is not None:
        rows[died] = {"error": "the process died"}
        if died == EXCLUDED[-1]:
            break
        more, died = run_examples(which, died + 1)
        rows.update(more)
    return rows


@pytest.mark.parametrize("number", SOUND, ids=lambda n: str(EXAMPLES[n]))
def test_bfloat16_agrees_with_float32(bfloat16_runs, number):
    found = bfloat16_runs[number]
    assert "error" not in found, f"{EXAMPLES[number]}: {found['error']}"
    # MXNet's own kernels truncate after each of a few steps (one eps each), oneDNN's round once.
    for kind in ("outputs", "gradients"):
        assert max(found[kind], default=0) <= 2 * BFLOAT16_EPS, f"{EXAMPLES[number]}: {kind} {found[kind]}"


# Without bfloat16 in the table though these examples are right in it.
EXCLUDED_FOR_A_REASON = {
    "positions": {"argmax", "argmin", "argmax_channel", "topk", "_contrib_arange_like"},
    "running sums, which longer inputs stop": {"_np_cumsum", "nansum", "prod", "nanprod", "Embedding", "take",
                                               "_contrib_AdaptiveAvgPooling2D", "_contrib_BilinearResize2D"},
}  # fmt: skip


@pytest.mark.slow
def test_bfloat16_is_excluded_only_where_it_fails():
    results = examples_in_processes("excluded")
    assert sorted(results) == EXCLUDED
    accepted = set().union(*EXCLUDED_FOR_A_REASON.values())
    sound = {
        EXAMPLES[n].op for n, row in results.items()
        if "error" not in row and max(row["outputs"] + row["gradients"]) <= 2 * BFLOAT16_EPS
    }  # fmt: skip
    assert sound <= accepted


def in_dtype(dtype, function, *arrays):
    """Return what a function of arrays gives in a dtype, and its first gradient for ones, in float32."""
    data = mx.nd.array(arrays[0])
    data.attach_grad()
    with mx.autograd.record():
        low = mx.nd.amp_cast(data, dtype=dtypes.to_numpy(dtype))
        result = mx.nd.amp_cast(function(low, *map(mx.nd.array, arrays[1:])), dtype="float32")
    result.backward()
    return result.asnumpy(), data.grad.asnumpy()


ONE_ROW = np.ones((1, 1)), np.zeros(5000)
RUNNING_SUMS = {
    "take": (lambda x, i: mx.nd.take(x, i), ONE_ROW, 1),
    "Embedding": (lambda x, i: mx.nd.Embedding(i, x, input_dim=1, output_dim=1), ONE_ROW, 1),
    "AdaptiveAvgPooling2D": (mx.nd.contrib.AdaptiveAvgPooling2D, (np.ones((1, 1, 56, 56)),), 0),
    "BilinearResize2D": (lambda x: mx.nd.contrib.BilinearResize2D(x, height=80, width=80), (np.ones((1, 1, 5, 5)),), 1),
}


@pytest.mark.parametrize("function, arrays, which", RUNNING_SUMS.values(), ids=RUNNING_SUMS.keys())
def test_running_sums_in_bfloat16_stop_growing(function, arrays, which):
    found, expected = (in_dtype(dtype, function, *arrays)[which] for dtype in ("bfloat16", "float32"))
    assert found.max() < expected.max() / 2


@pytest.mark.parametrize("size, average", [(32, 1.0), (64, 0.5)])
def test_float16_windows_beyond_the_limit_stop_growing(size, average):
    found, _ = in_dtype("float16", mx.nd.contrib.AdaptiveAvgPooling2D, np.ones((1, 1, size, size)))
    assert found == average  # of ones; 64 * 64 is twice 2048


@pytest.mark.parametrize("factor, off", [(8, False), (32, True)])
def test_float16_gradient_of_a_magnification_beyond_the_limit_is_off(factor, off):
    def resize(x):
        return mx.nd.contrib.BilinearResize2D(x, height=4 * factor, width=4 * factor)

    found, expected = (in_dtype(dtype, resize, np.ones((1, 1, 4, 4)))[1] for dtype in ("float16", "float32"))
    assert (relative_errors([found], [expected])[0] > 0.02) == off


@pytest.mark.parametrize("length, total", [(1024, 1024), (60000, 60000), (70000, np.inf)])
def test_float16_sums_carry_their_error_along_but_overflow(length, total):
    assert in_dtype("float16", mx.nd.sum, np.ones(length))[0] == total


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example.rule.exact], ids=str)
def test_exact_operators_stay_on_the_grid(example):
    rng = np.random.default_rng(0)
    values = [np.exp2(rng.uniform(-16, 4, shape)) * rng.choice((-1, 1), shape) for shape in example.shapes]
    for dtype, round_to in (("float16", to_float16), ("bfloat16", to_bfloat16)):
        given = example.arrays()
        for port in example.data_ports:
            given[port] = round_to(values[port])
        outputs, _ = run(example, dtypes.FLOAT32, given)
        for index, output in enumerate(outputs):
            if index not in example.rule.keep_outputs:
                np.testing.assert_array_equal(round_to(output), output, err_msg=dtype)


def to_float16(values):
    return np.asarray(values).astype(np.float16).astype(np.float32)


def to_bfloat16(values):
    return (np.asarray(values, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


ZOO = ["alexnet", "densenet121", "inceptionv3", "mobilenet1.0", "mobilenetv2_1.0", "resnet18_v1", "resnet18_v2",
       "squeezenet1.0", "vgg11", "vgg11_bn"]  # fmt: skip
GLUONCV = ["alexnet", "cifar_residualattentionnet56", "cifar_resnet20_v1", "cifar_resnet20_v2", "cifar_resnext29_16x64d",
           "cifar_wideresnet16_10", "darknet53", "densenet121", "dla34", "googlenet", "inceptionv3", "mobilenet1.0",
           "mobilenetv2_1.0", "mobilenetv3_large", "mobilenetv3_small", "nasnet_4_1056", "residualattentionnet56",
           "resnest14", "resnest50", "resnet18_v1", "resnet18_v1b_0.89", "resnet18_v2", "resnet50_v1b", "resnet50_v1c",
           "resnet50_v1d", "resnet50_v1e", "resnet50_v1s", "resnext50_32x4d", "se_resnet18_v1", "se_resnet18_v2",
           "se_resnext50_32x4d", "senet_154", "shufflenet_v1", "shufflenet_v2", "squeezenet1.0", "vgg11", "vgg11_bn",
           "xception", "ssd_300_mobilenet0.25_voc", "ssd_300_mobilenet1.0_lite_coco", "ssd_300_resnet34_v1b_voc",
           "ssd_300_vgg16_atrous_voc", "ssd_512_resnet18_v1_voc", "ssd_512_resnet50_v1_voc"]  # fmt: skip
OTHER_TASKS = re.compile(
    "int8|custom|_gn|kinetics|hmdb|ucf101|sthsth|rcnn|fcn|psp|deeplab|danet|icnet|fastscnn|hrnet|yolo|center_net|pose"
    "|siam|monodepth|i3d|p3d|r2plus1d|slowfast|c3d"
)  # _gn: GluonCV's group norm does not run as a symbol


def operators(net):
    """Return the operators of a net's graph, casts of its own left out."""
    heads = net(mx.sym.var("data"))
    flat = [head for each in (heads if isinstance(heads, tuple) else (heads,)) for head in each]
    nodes = json.loads(mx.sym.Group(flat).tojson(remove_amp_cast=False))["nodes"]
    return {node["op"] for node in nodes} - {"null", *CAST_OPS}


@pytest.mark.parametrize("name", ZOO)
def test_operators_of_the_gluon_model_zoo_have_rules(name):
    assert operators(vision.get_model(name)) - set(RULES.ops()) == set()


@pytest.mark.parametrize("name", GLUONCV)
def test_operators_of_gluoncv_have_rules(name):
    assert operators(gluoncv_net(name)) - set(RULES.ops()) == set()


@pytest.mark.slow
def test_operators_of_all_classification_and_ssd_networks_of_gluoncv_have_rules():
    import gluoncv

    names = [name for name in gluoncv.model_zoo.get_model_list() if not OTHER_TASKS.search(name)]
    assert len(names) > 100 and set(GLUONCV) <= set(names)
    without = {name: operators(gluoncv_net(name)) - set(RULES.ops()) for name in names}
    assert {name: ops for name, ops in without.items() if ops} == {}


def gluoncv_net(name):
    import gluoncv

    options = {"pretrained_base": False} if name.startswith("ssd") else {}
    return gluoncv.model_zoo.get_model(name, pretrained=False, **options)
