"""The package's get_symbol: names, dtypes, errors."""

from __future__ import annotations

import json

import numpy as np
import pytest

import symbols
from mxmp.policy import Policy
from mxmp.symbol import convert_graph
from tests.symbols.networks import CLASSIFIERS, draw, infer_shapes, logits, run

LOW = ["float16", "bfloat16"]
# One of each family: conversion is tested over all networks of Gluon elsewhere.
FAMILIES = [
    "mlp", "lenet", "alexnet_2012", "vgg11_bn", "googlenet", "inception_bn", "inception_v3", "resnet18_v1",
    "resnet50_v2", "resnext50_32x4d", "mobilenet0.5", "mobilenet_v2_1.0", "densenet121", "cifar_resnet20_v1",
]  # fmt: skip


SMALL = {"lenet": (1, 28, 28), "cifar_resnet20_v1": (3, 32, 32), "mobilenet0.25": (3, 64, 64)}


def graph_of(symbol):
    return json.loads(symbol.tojson(remove_amp_cast=False))


def test_arguments_reach_the_network():
    assert symbols.get_symbol("vgg11").tojson() == symbols.vgg.get_symbol(num_layers=11).tojson()
    by_file = symbols.get_symbol("resnet", num_classes=5, num_layers=34, version="v2")
    assert by_file.tojson() == symbols.get_symbol("resnet34_v2", 5).tojson()


def test_names_are_those_of_the_files_and_of_their_lists():
    assert {"resnet", "resnet50_v1b", "vgg16_bn", "mobilenet_v2_1.0"} <= set(CLASSIFIERS)
    assert "blocks" not in symbols.NETWORKS  # no get_symbol


@pytest.mark.parametrize("dtype", ["float32", "fp32", np.float32])
def test_float32_is_the_network_as_it_is_written(dtype):
    assert symbols.get_symbol("lenet", dtype=dtype).tojson() == symbols.lenet.get_symbol().tojson()


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", FAMILIES)
def test_low_precision_reaches_every_convolution_and_product(name, dtype):
    plain, mixed = symbols.get_symbol(name), symbols.get_symbol(name, dtype=dtype)
    assert mixed.list_arguments() == plain.list_arguments()
    assert mixed.list_auxiliary_states() == plain.list_auxiliary_states()
    assert mixed.list_outputs() == plain.list_outputs()
    graph = graph_of(mixed)
    cast = {"float16": "Cast", "bfloat16": "amp_cast"}[dtype]
    heavy = [node for node in graph["nodes"] if node["op"] in ("Convolution", "FullyConnected")]
    for node in heavy:  # their weights are cast for them, hence their data too, or they would not type-check
        weight = graph["nodes"][node["inputs"][1][0]]
        assert (weight["op"], weight["attrs"]["dtype"]) == (cast, dtype), node["name"]
    assert heavy
    args, outputs, aux = mixed.infer_type(data="float32")
    assert {np.dtype(t).name for t in (*args, *outputs, *aux)} == {"float32"}


@pytest.mark.parametrize("dtype", LOW)
def test_conversion_is_mxmps_and_leaves_shapes_alone(dtype):
    mixed = symbols.get_symbol("resnet18_v1b", num_classes=7, dtype=dtype)
    policy = Policy.parse(f"mixed_{dtype}")
    restored = convert_graph(mixed, Policy()).symbol
    assert graph_of(restored) == graph_of(symbols.get_symbol("resnet18_v1b", num_classes=7))
    assert graph_of(convert_graph(restored, policy).symbol)["nodes"] == graph_of(mixed)["nodes"]
    assert mixed.infer_shape(data=(2, 3, 64, 64))[1] == [(2, 7)]


# (dtype, its eps)
ROUNDINGS = [("float16", 2.0**-10), pytest.param("bfloat16", 2.0**-7, marks=pytest.mark.bfloat16)]


@pytest.mark.parametrize("dtype, eps", ROUNDINGS)
@pytest.mark.parametrize("name", ["lenet", "cifar_resnet20_v1", "mobilenet0.25"])
def test_logits_are_nearly_those_of_float32(name, dtype, eps):
    head, shape = logits(symbols.get_symbol(name)), (4, *SMALL[name])
    rng = np.random.default_rng(0)
    params, images = draw(infer_shapes(head, shape), rng), rng.standard_normal(shape, np.float32)
    expected = run(head, params, images).asnumpy()
    mixed = symbols.get_symbol(name, dtype=dtype)
    runnable = convert_graph(mixed, Policy.parse(f"mixed_{dtype}")).on_cpu()  # float16 emulated
    found = run(logits(runnable), params, images).asnumpy()
    assert found.dtype == np.float32
    # Some tens of layers, two roundings each, of random sign.
    assert eps / 8 < np.abs(found - expected).max() / np.abs(expected).max() < 16 * eps


ERRORS = {
    "name": (("resnet51_v1",), {}, r"unknown network 'resnet51_v1'; the nearest are resnet50_v1, .*The networks are alexnet, "),
    "no name": ((50,), {}, "unknown network 50. The networks are alexnet, "),
    "dtype": (("mlp",), {"dtype": "fp61"}, "dtype='fp61': expected one of float32, float16, bfloat16."),
    "wide dtype": (("mlp",), {"dtype": "float64"}, "dtype='float64': expected one of float32, float16, bfloat16."),
    "argument": (("mlp",), {"hiden": (3,)}, "mlp has no argument 'hiden'; it takes num_classes, hidden."),
    "fixed": (("vgg16",), {"num_layers": 11}, "vgg16: the name already says num_layers=16; leave num_layers out, or give it to 'vgg'."),
    "classes": (("resnet18_v1",), {"num_classes": 0}, "num_classes=0: expected a positive integer."),
    "no classes": (("lenet",), {"num_classes": "ten"}, "num_classes='ten': expected a positive integer."),
    "vgg": (("vgg",), {"num_layers": 12}, "num_layers=12: expected one of 11, 13, 16, 19."),
    "resnet": (("resnet",), {"num_layers": 51}, "num_layers=51: expected one of 18, 34, 50, 101, 152."),
    "resnet version": (("resnet",), {"version": "v3"}, "version='v3': expected one of 'v1', 'v1b', 'v2'."),
    "resnext": (("resnext",), {"num_layers": 152}, "num_layers=152: expected one of 50, 101."),
    "densenet": (("densenet",), {"num_layers": 120}, "num_layers=120: expected one of 121, 161, 169, 201."),
    "cifar": (("cifar_resnet",), {"num_layers": 21}, "num_layers=21: expected 6n [+] 2, such as 20, 32, 44, 56 or 110."),
    "cifar version": (("cifar_resnet",), {"version": "v1b"}, "version='v1b': expected one of 'v1', 'v2'."),
    "alexnet": (("alexnet",), {"columns": 3}, "columns=3: expected one of 1, 2."),
    "mobilenet": (("mobilenet",), {"multiplier": 2.0}, "multiplier=2.0: expected one of 1.0, 0.75, 0.5, 0.25."),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_the_argument_and_what_is_known(case):
    args, kwargs, message = ERRORS[case]
    with pytest.raises(ValueError, match=message):
        symbols.get_symbol(*args, **kwargs)
