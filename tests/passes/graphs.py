"""Graphs from text with facts on them, conversions of symbols, and steps of symbols and of nets."""

from dataclasses import replace

import mxnet as mx
import numpy as np
from mxnet import autograd

from mxmp import Policy
from mxmp.gluon import Trainer
from mxmp.passes import Facts
from mxmp.symbol import convert_graph, from_graph, to_graph
from tests.graph.text import from_text


def with_facts(text, dtypes=None, shapes=None, **fields):
    """Return (graph, facts): all is float32 of unknown shape but for the dtypes and shapes given by node name."""
    graph = from_text(text)
    at = {node.name: (i, 0) for i, node in enumerate(graph.nodes)}
    known = {**Facts.assume_float32(graph).dtypes, **{at[name]: dtype for name, dtype in (dtypes or {}).items()}}
    sizes = {at[name]: shape for name, shape in (shapes or {}).items()}
    return graph, Facts(known, sizes, **{name: frozenset(value) for name, value in fields.items()})


def converted(net, shapes, policy="O1"):
    """Return a symbol's conversion, all its arguments float32."""
    types = dict.fromkeys(net.list_arguments(), "float32")
    return convert_graph(net, Policy.parse(policy), shapes, types, inputs=frozenset(shapes))


def precisions(net, shapes, policy="O1"):
    """Return the precision of each operator of a converted symbol, by name."""
    return {row.name: row.precision for row in converted(net, shapes, policy).report.rows}


def on_cpu(symbol, shapes, policy="mixed_bfloat16", trains=True, **options):
    """Return what a CPU runs of a symbol's conversion."""
    return converted(symbol, shapes, policy).on_cpu(trains, **options)


def conv(data, channels, kernel=3, **attrs):
    """Return a convolution of images that keeps their size."""
    return mx.sym.Convolution(data, num_filter=channels, kernel=(kernel,) * 2, **{"pad": (kernel // 2,) * 2, **attrs})


def operators(symbol):
    """Return the operators of a symbol."""
    return [node.op for node in to_graph(symbol).operators()]


def channels(symbol):
    """Return the output channels of a symbol's convolutions."""
    return [int(node.get("num_filter")) for node in to_graph(symbol).nodes if node.op == "Convolution"]


def without_rounding(symbol):
    """Return what runs on a CPU under a bfloat16 policy, with casts that round nothing, for any processor.

    Like casts to bfloat16, SwapAxis gives the default layout, forward and backward; amp_cast to float32 would not.
    """
    graph, attrs = to_graph(symbol), (("dim1", "0"), ("dim2", "0"))
    nodes = (node._replace(op="SwapAxis", attrs=attrs) if node.op == "amp_cast" else node for node in graph.nodes)
    text = from_graph(replace(graph, nodes=tuple(nodes)), symbol).tojson(remove_amp_cast=False)
    return mx.sym.load_json(text.replace('"__dtype__": "12"', '"__dtype__": "0"'))


def step(symbol, values, wrt=None, head_grads=None):
    """Return (outputs, gradients by name) of a step of training, in numpy.

    Args:
        symbol: The symbol.
        values: The inputs and auxiliary states by name, of numpy or MXNet; the latter are bound themselves.
        wrt: The names of the inputs whose gradients are computed, by default all.
        head_grads: The gradient of each output, by default ones.
    """
    arrays = {name: value if isinstance(value, mx.nd.NDArray) else mx.nd.array(value) for name, value in values.items()}
    names, states = symbol.list_arguments(), symbol.list_auxiliary_states()
    grads = {name: mx.nd.zeros_like(arrays[name]) for name in (names if wrt is None else wrt)}
    wanted = {name: "write" if name in grads else "null" for name in names}
    executor = symbol.bind(mx.cpu(), {n: arrays[n] for n in names}, grads, wanted, {n: arrays[n] for n in states})
    outputs = executor.forward(is_train=True)
    if grads:
        heads = head_grads or [mx.nd.ones(output.shape) for output in outputs]
        executor.backward([mx.nd.array(head, dtype=output.dtype) for head, output in zip(heads, outputs)])
    return [output.asnumpy() for output in outputs], {name: grad.asnumpy() for name, grad in grads.items()}


def values_of(symbol, shapes, seed=0):
    """Return random values of a symbol's arguments by name, and ones for its auxiliary states."""
    arguments, _, states = symbol.infer_shape(**shapes)
    random, names = np.random.RandomState(seed), symbol.list_auxiliary_states()
    values = {name: random.randn(*shape).astype("float32") for name, shape in zip(symbol.list_arguments(), arguments)}
    return {**values, **{name: np.ones(shape) for name, shape in zip(names, states)}}


def step_of(symbol, values, wrt=None):
    """Return the first output and the gradients of a step, the first output's gradient being random."""
    symbol = symbol[0]
    head = np.random.RandomState(1).randn(*symbol.infer_shape(**{n: np.shape(v) for n, v in values.items()})[1][0])
    (output,), gradients = step(symbol, values, wrt or symbol.list_arguments(), [head])
    return [output, *gradients.values()]


def assert_same_steps(symbol, after, values, bound=2e-5, wrt=None):
    """Compare a step of two symbols in float32, each array within a part of its largest value, or of a half."""
    assert after.list_arguments() == symbol.list_arguments() and after.list_outputs() == symbol.list_outputs()
    for one, other in zip(step_of(symbol, values, wrt), step_of(after, values, wrt)):
        np.testing.assert_allclose(other, one, rtol=0, atol=bound * max(np.abs(one).max(), 0.5))


def assert_as_exact(exact, without, found, factor):
    """Check that arrays are about as near to the exact ones as those without a rewrite."""
    for right, plain, other in zip(exact, without, found):
        error, bound = np.linalg.norm(other - right), np.linalg.norm(plain - right)
        assert error <= factor * bound + 1e-6 * np.linalg.norm(right)


def losses_of(net, loss, batches, rate=0.1):
    """Return the mean loss of each step of a net that trains on batches of data and labels."""
    trainer, found = Trainer(net.collect_params(), "sgd", {"learning_rate": rate}), []
    for data, label in batches:
        with autograd.record():
            value = loss(net(data), label)
            with trainer.scale_loss(value) as scaled:
                scaled.backward()
        trainer.step(len(data))
        found.append(value.mean().asscalar())
    return found
