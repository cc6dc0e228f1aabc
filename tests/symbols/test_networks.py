"""Properties that every classification network has."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import symbols
from tests.symbols.networks import CLASSIFIERS, FILES, draw, infer_shapes, input_shape, logits, run, run_bound

ROOT = Path(symbols.__file__).parent


def nodes_of(symbol):
    return json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_inputs_and_outputs_are_those_that_module_expects(name):
    symbol = symbols.get_symbol(name)
    shape = input_shape(name)
    args, outputs, _ = symbol.infer_shape(data=shape)
    shapes = dict(zip(symbol.list_arguments(), args))
    assert symbol.list_outputs() == ["softmax_output"]
    assert shapes["data"] == shape and shapes["softmax_label"] == (2,)
    assert outputs == [(2, 10 if name in ("mlp", "lenet") or name.startswith("cifar") else 1000)]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_networks_are_float32_by_construction(name):
    symbol = symbols.get_symbol(name)
    args, outputs, aux = symbol.infer_type(data="float32")
    assert {np.dtype(t).name for t in (*args, *outputs, *aux)} == {"float32"}
    assert not any("cast" in node["op"].lower() for node in nodes_of(symbol))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_names_are_unique_and_the_same_at_each_build(name):
    first = symbols.get_symbol(name).tojson()
    mx.sym.Convolution(mx.sym.relu(mx.sym.var("x")), kernel=(1, 1), num_filter=1)  # moves MXNet's counters of names
    assert symbols.get_symbol(name).tojson() == first
    names = [node["name"] for node in json.loads(first)["nodes"]]
    assert len(set(names)) == len(names)


def test_layers_can_be_addressed_by_pattern():
    names = [node["name"] for node in nodes_of(symbols.get_symbol("resnet50_v1b")) if node["op"] != "null"]
    assert {"conv0", "pool0", "global_pool", "fc", "softmax"} <= set(names)
    assert sum(name.startswith("stage3_unit") for name in names) == 6 * 10 + 2  # units, nodes of each, a projection
    assert sum(name.endswith("_bn") for name in names) == 53  # as many as convolutions


# Stages of the papers: output channels and edge for images of 224 pixels (299 in v3).
STAGES = {
    # Szegedy et al. 2014, table 1.
    "googlenet": {
        "conv1": (64, 112), "pool1": (64, 56), "conv2": (192, 56), "pool2": (192, 28), "inception_3a_concat": (256, 28),
        "inception_3b_concat": (480, 28), "pool3": (480, 14), "inception_4a_concat": (512, 14),
        "inception_4b_concat": (512, 14), "inception_4c_concat": (512, 14), "inception_4d_concat": (528, 14),
        "inception_4e_concat": (832, 14), "pool4": (832, 7), "inception_5a_concat": (832, 7),
        "inception_5b_concat": (1024, 7), "global_pool": (1024, 1),
    },
    # Ioffe and Szegedy 2015, figure 5, but for 4c and 4d (576 there) and 4e (1024 there).
    "inception_bn": {
        "conv1": (64, 112), "pool1": (64, 56), "conv2": (192, 56), "pool2": (192, 28), "inception_3a_concat": (256, 28),
        "inception_3b_concat": (320, 28), "inception_3c_concat": (576, 14), "inception_4a_concat": (576, 14),
        "inception_4b_concat": (576, 14), "inception_4c_concat": (608, 14), "inception_4d_concat": (608, 14),
        "inception_4e_concat": (1056, 7), "inception_5a_concat": (1024, 7), "inception_5b_concat": (1024, 7),
    },
    # Szegedy et al. 2015, table 1.
    "inception_v3": {
        "conv1": (32, 149), "conv2": (32, 147), "conv3": (64, 147), "pool1": (64, 73), "pool2": (192, 35),
        "mixed_35_3_concat": (288, 35), "mixed_17_0_concat": (768, 17), "mixed_17_4_concat": (768, 17),
        "mixed_8_0_concat": (1280, 8), "mixed_8_2_concat": (2048, 8), "global_pool": (2048, 1),
    },
    # He et al. 2015, table 1.
    "resnet101_v1": {
        "conv0": (64, 112), "pool0": (64, 56), "stage1_unit3_relu": (256, 56), "stage2_unit4_relu": (512, 28),
        "stage3_unit23_relu": (1024, 14), "stage4_unit3_relu": (2048, 7),
    },
    # Krizhevsky et al. 2012, figure 2.
    "alexnet_2012": {
        "conv1": (96, 55), "pool1": (96, 27), "conv2": (256, 27), "pool2": (256, 13), "conv3": (384, 13),
        "conv4": (384, 13), "conv5": (256, 13), "pool5": (256, 6),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", STAGES)
def test_stages_have_the_sizes_of_the_paper(name):
    internals = symbols.get_symbol(name).get_internals()
    _, shapes, _ = internals.infer_shape(data=input_shape(name, batch=1))
    found = dict(zip(internals.list_outputs(), shapes))
    assert {stage: (found[f"{stage}_output"][1], found[f"{stage}_output"][2]) for stage in STAGES[name]} == STAGES[name]


@pytest.mark.parametrize("version, first, second", [("v1", "(2, 2)", "(1, 1)"), ("v1b", "(1, 1)", "(2, 2)")])
def test_resnet_versions_differ_in_where_the_stride_is(version, first, second):
    attrs = {node["name"]: node.get("attrs") for node in nodes_of(symbols.get_symbol(f"resnet50_{version}"))}
    assert attrs["stage2_unit1_conv1"]["stride"] == first
    assert attrs["stage2_unit1_conv2"]["stride"] == second


def test_resnet_features_are_the_last_stages_of_the_classifier():
    data = mx.sym.Variable("data")
    features = mx.sym.Group(symbols.resnet.get_features(data))
    assert features.infer_shape(data=(1, 3, 512, 512))[1] == [(1, 1024, 32, 32), (1, 2048, 16, 16)]
    names = set(symbols.get_symbol("resnet50_v1").list_arguments())
    assert names - set(features.list_arguments()) == {"fc_weight", "fc_bias", "softmax_label"}


@pytest.mark.parametrize(
    "name, sources",
    [
        ("alexnet_2012", {"norm1": "conv1_relu", "pool1": "norm1", "norm2": "conv2_relu", "pool2": "norm2"}),
        ("googlenet", {"norm1": "pool1", "norm2": "conv2_relu", "pool2": "norm2"}),  # figure 3
    ],
)
def test_response_normalization_stands_where_the_paper_has_it(name, sources):
    nodes = nodes_of(symbols.get_symbol(name))
    reads = {node["name"]: nodes[node["inputs"][0][0]]["name"] for node in nodes if node["inputs"]}
    assert {node: reads[node] for node in sources} == sources
    assert sum(node["op"] == "LRN" for node in nodes) == 2


@pytest.mark.parametrize("name", ["alexnet_2012", "googlenet"])
def test_fused_inference_gives_the_same_logits(name):
    """Those that have no Gluon counterpart, where the others do this."""
    head, shape, rng = logits(symbols.get_symbol(name, num_classes=12)), (2, 3, 64, 64), np.random.default_rng(0)
    params, images = draw(infer_shapes(head, shape), rng), rng.standard_normal(shape, np.float32)
    plain, fused = (evaluate(head, params, images).asnumpy() for evaluate in (run, run_bound))
    eps = np.abs(plain).max() * np.finfo(np.float32).eps
    np.testing.assert_allclose(fused, plain, rtol=0, atol=16 * eps)  # a convolution with its ReLU: no sum changes


def test_response_normalization_is_that_of_the_paper():
    """Krizhevsky et al. 2012, section 3.3, in numpy and float64."""
    symbol = symbols.get_symbol("alexnet_2012")
    internals = symbol.get_internals()
    pair = mx.sym.Group([internals["conv1_relu_output"], internals["norm1_output"]])
    rng = np.random.default_rng(0)
    shape = (1, 3, 47, 47)
    params = {name: 30 * v for name, v in draw(infer_shapes(pair, shape), rng).items()}  # else the sum is lost beside k
    before, after = (out.asnumpy() for out in run(pair, params, rng.standard_normal(shape, np.float32)))
    padded = np.pad(before.astype(np.float64) ** 2, ((0, 0), (2, 2), (0, 0), (0, 0)))
    sums = sum(padded[:, i : i + before.shape[1]] for i in range(5))
    expected = before / (2 + 1e-4 * sums) ** 0.75
    assert np.abs(expected / np.where(before, before, 1) - 2**-0.75).max() > 0.1  # the sum matters
    # pow(x, 0.75) in float32 is good to some ulps.
    np.testing.assert_allclose(after, expected, rtol=16 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("name, shape", [("mlp", (1, 28, 28)), ("lenet", (1, 28, 28)), ("cifar_resnet", (3, 16, 16))])
def test_module_trains_the_network(name, shape):
    rng = np.random.RandomState(0)
    labels = np.arange(16) % 4
    images = rng.randn(16, *shape) * 0.3 + rng.randn(4, *shape)[labels]  # four patterns under noise
    kwargs = {"num_layers": 8} if name == "cifar_resnet" else {}
    module = mx.mod.Module(symbols.get_symbol(name, num_classes=4, **kwargs), context=mx.cpu())
    batches = mx.io.NDArrayIter(images.astype(np.float32), labels, batch_size=16)
    mx.random.seed(0)
    np.random.seed(0)  # MXNet's initializers draw from either
    # Running statistics keep 0.9 of what they were, and so need some tens of steps.
    module.fit(batches, num_epoch=40, optimizer_params={"learning_rate": 0.02}, initializer=mx.init.Xavier())
    assert module.score(batches, "acc")[0][1] > 0.9  # 0.25 by chance


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.py")), ids=lambda path: path.name)
def test_networks_import_nothing_of_mxmp(path):
    modules = [n.module or "" for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
    modules += [a.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import) for a in n.names]
    assert any(module.split(".")[0] == "mxmp" for module in modules) == (path.name == "__init__.py")


def test_every_file_of_a_classifier_is_found():
    assert {name for name in FILES if name in symbols.NETWORKS} == set(FILES)
    assert len(CLASSIFIERS) > len(FILES)
