"""Checks the symbols, shapes, dtypes, parameters and policies that users give, against each other."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import Any, Dict, FrozenSet, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx

from .. import dtypes as dtypes_
from ..errors import ConvertError, DtypeError, InferenceError, ParamsError, a_type_of, did_you_mean, listed
from ..graph import Entry, Graph
from ..passes import Facts
from ..passes.scale_loss import is_loss_head
from ..policy import Policy
from ..report import Removed
from ..report.gradients import HEADROOM
from .inference import Shapes, check_inputs, infer_network, to_graph

PolicyLike = Union[str, Policy]
"""A policy, or the text of one."""

# How MXNet's Initializer tells parameters by their names (python/mxnet/initializer.py at tag 1.9.1).
_PARAMETER_SUFFIXES = ("weight", "bias", "gamma", "beta", "parameters")

LABEL_SUFFIX = "label"
"""How the names of labels end that MXNet gives."""


class Model(NamedTuple):
    """A symbol with the known facts about its inputs.

    ``ranges`` has measured magnitudes, of outputs too. ``removed`` has the nodes of the network that inference does not
    need. ``constants`` has the names of parameters that nothing trains.
    """

    symbol: Any
    shapes: Dict[str, Tuple[int, ...]]
    dtypes: Dict[str, str]
    ranges: Mapping[str, float] = {}
    removed: Removed = Removed()
    constants: FrozenSet[str] = frozenset()

    def known(self, args: Mapping[str, Any], aux: Mapping[str, Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
        """Return the known shapes and dtypes of inputs and parameters. Shapes are empty if no input's is known."""
        arrays = {name: args[name] for name in self.symbol.list_arguments() if name in args}
        arrays.update((name, aux[name]) for name in self.symbol.list_auxiliary_states())
        types = {name: dtypes_.canonical(array.dtype) for name, array in arrays.items()}
        shapes = {name: array.shape for name, array in arrays.items()} if self.shapes else {}
        return {**shapes, **self.shapes}, {**types, **self.dtypes}


def beyond_range(ranges: Mapping[str, float], policy: Policy) -> FrozenSet[str]:
    """Return the names of entries that may have values beyond the range of a policy's compute dtype, as measured."""
    if not policy.is_mixed:
        return frozenset()
    largest = dtypes_.limits(policy.compute_dtype).max
    return frozenset(name for name, value in ranges.items() if value * HEADROOM > largest)


def make_model(sym: Any, shapes: Any = None, dtypes: Any = None, ranges: Any = None) -> Model:
    """Return a symbol with a user's facts about its inputs, checked against each other.

    ``shapes`` is a dict, or pairs as in ``Module.data_shapes``; ``ranges`` has magnitudes by the name of an output,
    such as 'conv0_output', or of a variable.
    """
    variables = require_symbol(sym).list_inputs()
    try:
        pairs = shapes.items() if isinstance(shapes, Mapping) else [(pair[0], pair[1]) for pair in shapes or ()]
    except (TypeError, IndexError):
        raise ConvertError(f"shapes is {shapes!r}; expected a dict, or pairs of names and shapes.") from None
    sizes = {name: _checked_shape(name, shape) for name, shape in pairs}
    _require_names("shapes", "variable", sizes, variables)
    dtypes = _require_mapping("dtypes", dtypes or {})
    types = {name: _checked_dtype(name, dtype) for name, dtype in dtypes.items()}
    _require_names("dtypes", "variable", types, variables)
    magnitudes = checked_ranges(ranges)
    if magnitudes:
        _require_names("ranges", "output", magnitudes, sym.get_internals().list_outputs())
    return Model(sym, sizes, types, magnitudes)


def require_symbol(sym: Any) -> Any:
    """Return a symbol, or raise a ConvertError if it is none, or if two of its variables share a name.

    A GraphError names a node that MXNet read from a file with too few inputs.
    """
    if isinstance(sym, mx.sym.Symbol):
        check_inputs(to_graph(sym))
        names = sym.list_inputs()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConvertError(f"sym has two variables of the name '{twice}', which MXNet cannot bind; rename one.")
        return sym
    hint = "; for a Gluon net call mxmp.gluon.convert(net, policy)" if isinstance(sym, mx.gluon.Block) else ""
    raise ConvertError(f"sym is {a_type_of(sym)}; expected a Symbol{hint}.")


def _checked_shape(name: Any, shape: Any) -> Tuple[int, ...]:
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise ConvertError(f"shapes: {name!r} has shape {shape!r}; expected a tuple of integers.") from None
    if any(size < 0 for size in sizes):
        raise ConvertError(f"shapes: {name!r} has shape {sizes}; a size cannot be negative.")
    if math.prod(sizes) >= 2**31 - 1 and not mx.runtime.Features().is_enabled("INT64_TENSOR_SIZE"):
        raise ConvertError(f"shapes: {name!r} has shape {sizes}; this MXNet has tensors below 2**31 elements.")
    return sizes


def _checked_dtype(name: Any, dtype: Any) -> str:
    try:
        return dtypes_.canonical(dtype)
    except DtypeError as e:
        expected = ", ".join(dtypes_.ITEM_BYTES)
        raise ConvertError(f"dtypes: {name!r}: unknown dtype {dtype!r}; expected one of {expected}.") from e


def checked_ranges(ranges: Optional[Mapping[str, float]]) -> Dict[str, float]:
    """Return magnitudes by name, of entries of all kinds."""
    if ranges is not None and not isinstance(ranges, Mapping):
        raise ConvertError(
            f"ranges is {a_type_of(ranges)}; expected what mxmp.diagnose.measure_ranges returns, a dict of "
            f"largest magnitudes by output; of a file give what it holds."
        )
    if ranges is not None and isinstance(ranges.get("ranges"), Mapping):
        raise ConvertError(
            "ranges is all that `mxmp ranges --json` prints; give the part of it that it calls 'ranges'."
        )
    for name, value in (ranges or {}).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise ConvertError(f"ranges: {name!r} is {value!r}; expected its largest magnitude, a number from 0 on.")
    return {name: float(value) for name, value in (ranges or {}).items()}


def params_and_inputs(
    sym: Any, shapes: Mapping[str, Any], data_names: Optional[Sequence[str]] = None
) -> Tuple[FrozenSet[str], FrozenSet[str]]:
    """Return the names of a symbol's parameters and of its inputs, labels included.

    If neither ``shapes`` nor ``data_names`` name the inputs, parameters are known by their names. Labels are then the
    only known inputs.
    """
    arguments = frozenset(sym.list_arguments())
    if not isinstance(data_names, (list, tuple, set, frozenset, type(None))):
        raise ConvertError(f"data_names is {data_names!r}; expected a list of names.")
    _require_names("data_names", "variable", data_names or (), sym.list_inputs())
    if data_names is None and not shapes:
        return frozenset(name for name in arguments if name.endswith(_PARAMETER_SUFFIXES)), label_names(sym)
    inputs = frozenset(shapes if data_names is None else data_names)
    params = frozenset(name for name in arguments - inputs if not name.endswith(LABEL_SUFFIX))
    return params, arguments - params


def check_params(sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], shapes: Any) -> None:
    """Check that parameters are arrays, and all there; their shapes are known once MXNet has inferred them.

    Parameters that the symbol does not have are let pass, as MXNet does.
    """
    for what, params in (("arg_params", arg_params), ("aux_params", aux_params)):
        for name, array in _require_mapping(what, params).items():
            if not isinstance(array, mx.nd.NDArray) or array.stype != "default":
                wanted = "a dense one" if isinstance(array, mx.nd.NDArray) else "an NDArray of MXNet"
                raise ConvertError(f"{what}: {name!r} is {a_type_of(array)}; expected {wanted}.")
    absent = [n for n in sym.list_arguments() if n not in arg_params and n not in shapes]
    for what, params, missing in (
        ("aux_params", aux_params, [n for n in sym.list_auxiliary_states() if n not in aux_params]),
        ("arg_params", arg_params, [n for n in absent if n.endswith(_PARAMETER_SUFFIXES)]),
    ):
        if missing:
            lacks = f"{what} lacks {listed(missing)}, which the symbol has"
            names = [*arg_params, *aux_params]
            if names and not set(names) & {*sym.list_arguments(), *sym.list_auxiliary_states()}:
                raise ParamsError(f"{lacks}; those given, {listed(names)}, seem to be another network's.")
            raise ParamsError(f"{lacks}{did_you_mean(missing[0], params) if params else '; it is empty'}.")


@contextlib.contextmanager
def blaming_params(sym: Any, params: Mapping[str, Any], shapes: Shapes) -> Iterator[None]:
    """Let an error of inference in the block name the parameter that does not fit the inputs, if there is one."""
    try:
        yield
    except InferenceError:
        graph = to_graph(sym)
        try:
            facts = infer_network(sym, graph, shapes, {}, frozenset(params))
        except InferenceError:
            facts = Facts({})  # the network is wrong by itself
        sizes = {name: array.shape for name, array in params.items() if name not in shapes}
        require_fit(graph, facts, sizes, shapes)
        raise


def require_fit(graph: Graph, facts: Facts, sizes: Shapes, shapes: Shapes) -> None:
    """Raise a ParamsError if a variable of a graph, whose inputs have some shapes, has another size than it wants.

    MXNet's own inference refuses some parameters, and overwrites the shapes of others, of BatchNorm's for example.
    """
    for position, node in enumerate(graph.nodes):
        wanted = facts.shape(Entry(position)) if node.is_variable else None
        if wanted is not None and sizes.get(node.name, wanted) != wanted:
            readers = [each for each in graph.nodes if any(entry.node == position for entry in each.inputs)]
            inputs = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ParamsError(
                f"'{node.name}' of node '{(readers or [node])[0].name}' has shape {sizes[node.name]}, not {wanted}, as "
                f"the symbol wants with {inputs}: correct the shapes of inputs, or these parameters are another "
                f"network's."
            )


def _require_mapping(argument: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        kind = "None" if value is None else f"{a_type_of(value)}"
        raise ConvertError(f"{argument} is {kind}; expected a dict by the names of variables, {{}} for none.")
    return value


def _require_names(argument: str, kind: str, names: Iterable[Any], existing: Sequence[str]) -> None:
    for name in names:
        if name not in existing:
            raise ConvertError(f"{argument}: the symbol has no {kind} {name!r}{did_you_mean(str(name), existing)}.")


def label_names(symbol: Any) -> FrozenSet[str]:
    """Return the names of a symbol's labels.

    They are the variables whose names end in 'label', and second inputs of loss heads that nothing else reads. In
    ``LinearRegressionOutput(out, target)`` it is 'target'. One that is reshaped before has to be named so.
    """
    graph = to_graph(symbol)
    labels, others = set(), {head.node for head in graph.heads}
    for node in graph.nodes:
        data_ports = 1 if is_loss_head(node) else len(node.inputs)
        others |= {entry.node for entry in node.inputs[:data_ports]}
        labels |= {entry.node for entry in node.inputs[data_ports:]}
    named = {node.name for node in graph.nodes if node.is_variable and node.name.endswith(LABEL_SUFFIX)}
    return frozenset(named | {graph.nodes[i].name for i in labels - others if graph.nodes[i].is_variable})
