"""Small networks, their parameters, and what MXNet says about them."""

import mxnet as mx
import numpy as np

from mxmp import Policy
from mxmp.symbol import convert_graph, infer_facts, to_graph
from tests.symbol.measure import CASTS, nodes_of

X = {"x": (4, 6)}


TWICE = "mxmp_tests_twice"
"""A user's operator."""


@mx.operator.register(TWICE)
class _TwiceProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return _Twice()


class _Twice(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)


def dense(data, name="fc", weight=None, hidden=6):
    """Return a product with a weight; its layer is called ``name``."""
    weight = mx.sym.var(f"{name}_weight") if weight is None else weight
    return mx.sym.FullyConnected(data, weight, no_bias=True, num_hidden=hidden, name=name)


def convolutional():
    """Return a network with every kind of parameter, and the shapes of its inputs."""
    data = mx.sym.Convolution(mx.sym.var("x"), kernel=(3, 3), num_filter=4, name="conv")
    data = mx.sym.relu(mx.sym.BatchNorm(data, fix_gamma=False, name="bn"), name="act")
    data = mx.sym.FullyConnected(mx.sym.Flatten(data, name="flat"), num_hidden=5, name="fc")
    return mx.sym.softmax(data, name="soft"), {"x": (2, 3, 8, 8)}


def convert(symbol, policy="O1", shapes=None, params=None, dtypes=None):
    """Return a symbol's conversion; what ``shapes`` does not name is a parameter, all inputs are float32."""
    shapes = X if shapes is None else shapes
    params = frozenset(symbol.list_arguments()) - set(shapes) if params is None else params
    known = {**dict.fromkeys(shapes, "float32"), **(dtypes or {})}
    return convert_graph(symbol, Policy.parse(policy), shapes, known, frozenset(params))


def assert_facts(found, shapes, params=frozenset()):
    """Check that what a conversion says of its graph, from the plan, is what MXNet infers of it."""
    types = {name: dtype for name, dtype in found.read_dtypes.items() if name not in found.low_params}
    _compare(found.facts, infer_facts(found.symbol, to_graph(found.symbol), shapes, types, params))


def _compare(facts, expected):
    for field in ("dtypes", "shapes", "output_names"):
        assert getattr(facts, field) == getattr(expected, field)
    assert facts.bodies.keys() == expected.bodies.keys()
    for key, body in facts.bodies.items():
        _compare(body, expected.bodies[key])


def precisions(found):
    """Return what each operator of a conversion computes in, by name."""
    return {row.name: row.precision for row in found.report.rows}


def params_of(symbol, shapes, seed=0):
    """Return arguments and auxiliary states of a symbol whose inputs are those that ``shapes`` names."""
    rng = np.random.RandomState(seed)
    args, _, aux = symbol.infer_shape(**shapes)
    inputs = zip(symbol.list_arguments(), args)
    values = {name: mx.nd.array(rng.uniform(-1, 1, shape)) for name, shape in inputs if name not in shapes}
    return values, {name: mx.nd.ones(shape) for name, shape in zip(symbol.list_auxiliary_states(), aux)}


def dtypes_of(arrays):
    """Return the dtypes of arrays by name; bfloat16 is called by its name."""
    return {name: "bfloat16" if np.dtype(a.dtype).names else np.dtype(a.dtype).name for name, a in arrays.items()}


def snapshot(*dicts):
    """Return the names, arrays and values of dicts, to see later that nothing changed."""
    return [
        {name: (id(array), str(array.dtype), array.asnumpy().tobytes()) for name, array in d.items()} for d in dicts
    ]


def text(symbol):
    """Return a symbol's JSON, with amp_cast."""
    return symbol.tojson(remove_amp_cast=False)


def run(symbol, values):
    """Return the outputs of a symbol that plain MXNet binds; arrays of numpy are float32 arguments."""
    arrays = {n: a if isinstance(a, mx.nd.NDArray) else mx.nd.array(a) for n, a in values.items()}
    args = {name: arrays[name] for name in symbol.list_arguments()}
    aux = {name: arrays[name] for name in symbol.list_auxiliary_states()}
    return [out.asnumpy() for out in symbol.bind(mx.cpu(), args, aux_states=aux).forward()]


def casts_of(symbol):
    """Return the names of what is cast, sorted."""
    nodes = nodes_of(symbol)
    return sorted(nodes[node["inputs"][0][0]]["name"] for node in nodes if node["op"] in CASTS)
