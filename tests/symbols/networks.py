"""What the tests of the networks share: their input shapes, random parameters, and running them."""

import json

import mxnet as mx
import numpy as np


def nodes_of(symbol):
    return json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]


def input_shape(name, batch=2):
    """Return the shape of the images that a network is published with."""
    if name in ("mlp", "lenet"):
        return (batch, 1, 28, 28)
    size = 32 if name.startswith("cifar") else 299 if name == "inception_v3" else 224
    return (batch, 3, size, size)


def shapes_of(symbol, **inputs):
    """Return the shapes of the arguments, the inputs left out, and of the auxiliary states, by name."""
    args, _, aux = symbol.infer_shape(**{name: shape for name, shape in inputs.items() if name in symbol.list_inputs()})
    inputs = {**inputs, "softmax_label": ()}
    arguments = {n: s for n, s in zip(symbol.list_arguments(), args) if n not in inputs}
    return arguments, dict(zip(symbol.list_auxiliary_states(), aux))


def infer_shapes(symbol, shape):
    arguments, aux = shapes_of(symbol, data=shape)
    return {**arguments, **aux}


def count(arguments, skip=()):
    """Return how many numbers arguments hold, those whose names end in ``skip`` left out."""
    return sum(int(np.prod(shape)) for name, shape in arguments.items() if not name.endswith(tuple(skip)))


def logits(symbol):
    """Return what goes into the loss head."""
    last = nodes_of(symbol)[-1]
    assert (last["op"], last["name"]) == ("SoftmaxOutput", "softmax")
    return symbol.get_children()[0]


def draw(shapes, rng):
    """Return parameters under which signals neither die nor explode, by name."""
    return {name: _draw(name, shape, rng) for name, shape in shapes.items()}


def _draw(name, shape, rng):
    if name.endswith(("gamma", "var", "scale")):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if name.endswith("weight"):
        return (rng.standard_normal(shape, np.float32) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
    return (0.1 * rng.standard_normal(shape, np.float32)).astype(np.float32)


def draw_small(shapes, seed=1):
    """Return weights around 0, and gammas around 1, of at most a half, by name."""
    rng = np.random.RandomState(seed)
    return {n: mx.nd.array(n.endswith("gamma") + rng.uniform(-0.5, 0.5, s)) for n, s in shapes.items()}


def run(symbol, params, images):
    """Return the output of a symbol in inference, operator by operator as it is written."""
    values = {**params, "data": images}
    return mx.nd.CachedOp(symbol)(*[mx.nd.array(values[name]) for name in symbol.list_inputs()])


def execute(symbol, weights, inputs, is_train=False):
    """Return the first output of a symbol and, in training, the gradients of its weights, by name."""
    inputs = {n: v for n, v in inputs.items() if n in symbol.list_arguments()}
    request = {n: "null" if n in inputs else "write" for n in symbol.list_arguments()}
    executor = symbol.simple_bind(mx.cpu(), grad_req=request, **{n: v.shape for n, v in inputs.items()})
    executor.copy_params_from(weights)
    output = executor.forward(is_train=is_train, **inputs)[0].asnumpy()
    if is_train:
        executor.backward()
    return output, {n: g.asnumpy() for n, g in executor.grad_dict.items() if g is not None and is_train}


def check_dropout(plain, dropping, weights, inputs):
    """Check that dropout acts in training alone."""
    expected, _ = execute(plain, weights, inputs)
    np.testing.assert_array_equal(execute(dropping, weights, inputs)[0], expected)
    assert np.abs(execute(dropping, weights, inputs, is_train=True)[0] - expected).max() > 0.01


def dropouts(symbol):
    """Return the rates of all dropouts by the node that they stand in, those of 0 left out."""
    rates = {node["name"]: float(node["attrs"]["p"]) for node in nodes_of(symbol) if "p" in node.get("attrs", {})}
    return {name: rate for name, rate in rates.items() if rate}
