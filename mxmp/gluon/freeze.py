r"""Nets that only infer: BatchNorm folded in float32, dropout left out, weights stored low, the graph partitioned.

A net or a model becomes a `Source`, which is converted once and becomes a SymbolBlock::

    net, model -> Source -> fold -> convert -> guard, emulate -> SymbolBlock
                               |                          \-> partition -> its CachedOp
                               \-> export
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import warnings
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.symbol.numpy import _Symbol as NumpySymbol

from .. import dtypes as dtypes_
from ..devices.auto import parse_policy
from ..devices.check import require_bfloat16, warn_if_slow
from ..errors import ConvertError, InferenceError, a_type_of, mxnet_reason
from ..graph import Graph
from ..mxnet_private import is_initialized
from ..policy import AUTO, Policy, PolicyChanges, is_auto
from ..symbol import from_graph, to_graph
from ..symbol.arguments import Model, check_params, make_model
from ..symbol.convert import ConvertedModel, convert_prepared
from ..symbol.inference import infer_network
from ..symbol.rewrite import emulated
from .blocks import FROZEN, block_names, conversion_of, frozen_model, plain_class, roots, set_graph, set_op
from .cache import make_operator
from .regions import BlockRegions, find_regions, outside_regions
from .storage import contexts_of
from .trace import Trace, arguments, dtype_advice, flat_arguments, trace

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OTHER_INPUTS = "The argument structure of HybridBlock does not match"  # in MXNet's error for a call unlike the first
_NUMBERED = re.compile(r"data\d+")  # Gluon's names of several inputs


class Source(NamedTuple):
    """A network to be frozen, with its values and the form of its calls.

    Attributes:
        where: Begins error messages.
        model: Its symbol, and the known shapes, dtypes and ranges.
        args: Its arguments, by name.
        aux: Its auxiliary states, by name.
        inputs: The names of its inputs, in the order of a call.
        formats: The nesting of inputs and outputs; None for flat ones.
        context: The context of its values.
        policy: The policy that it was converted to, None if it was not.
        blocks: The paths and prefixes of the net's blocks, for errors.
    """

    where: str
    model: Model
    args: Dict[str, Any]
    aux: Dict[str, Any]
    inputs: Sequence[str]
    formats: Optional[Tuple[Any, Any]]
    context: mx.Context
    policy: Optional[Policy] = None
    blocks: Sequence[str] = ()

    def converted(self, policy: Policy, check: bool) -> ConvertedModel:
        """Return the model for inference, with weights in the dtype in which they are read.

        Under ``npx.set_np`` weights are float32. ``check`` says whether each of the policy's patterns has to match.
        """
        if not isinstance(self.model.symbol, NumpySymbol):  # numpy arrays have no low precision
            policy = policy.replace(param_dtype=policy.compute_dtype)
        try:
            return convert_prepared(self.model, self.args, self.aux, policy, True, check, self.blocks)
        except ConvertError as e:
            raise type(e)(f"{self.where}: {e}") from e


class FrozenBlock(gluon.SymbolBlock):
    """A SymbolBlock that only infers. It refuses to be recorded, because its gradients would be zeros.

    Attributes:
        make_fused: Makes the operator of the partitioned graph for some flags; None if MXNet does not partition it.
    """

    make_fused: Optional[Callable[[List[Tuple[str, Any]]], Tuple[Any, Any]]] = None

    def forward(self, x: Any, *args: Any) -> Any:
        """Run it. With an op hook it runs without static flags, more slowly, until it is hybridized with them.

        With static flags MXNet reports only some of the operators to a hook. The defect: StaticRunOps in
        src/imperative/cached_op.cc runs prepared operators without a call of the hook.
        """
        flags = [flag for flag in self._flags if flag[0] not in ("static_alloc", "static_shape")]
        if self._callback is not None and flags != self._flags:
            self.hybridize(**dict(flags))
            if self.make_fused is not None:
                set_op(self, *self.make_fused(flags))
        if autograd.is_recording() and isinstance(x, mx.nd.NDArray) and frozen_model(self):
            raise ConvertError(
                f"block '{self.name}' is frozen, and has no gradients; call it outside of autograd.record, or within "
                f"autograd.pause(). To train, convert the net that it was made of."
            )
        try:
            return super().forward(x, *args)
        except mx.MXNetError as e:
            if not str(e).startswith("MXNetError: Error in operator"):
                raise
            raise InferenceError(f"block '{self.name}': {mxnet_reason(e)}{self._advice(e, x, *args)}") from e
        except ValueError as e:
            if _OTHER_INPUTS not in str(e):
                raise
            inputs, count = self._cached_graph[0], len(flat_arguments((x, *args)).arrays)
            raise ConvertError(
                f"block '{self.name}' was frozen with the inputs {', '.join(each.name for each in inputs)}; this call "
                f"gives {count}, or nests them differently. Hybridize the net that it was made of, call the net as "
                f"you call the block, and freeze it again."
            ) from e

    def _advice(self, error: mx.MXNetError, *args: Any) -> str:
        """Return advice about the dtypes of a call's arrays, if they are the cause of an error."""
        if "Incompatible attr" not in str(error):
            return ""
        inputs, arrays = self._cached_graph[0], flat_arguments(args).arrays
        return dtype_advice({each.name: dtypes_.canonical(array.dtype) for each, array in zip(inputs, arrays)})

    def cast(self, dtype: Any) -> None:
        """Do nothing if all weights have this dtype; else raise, because the graph reads weights as they are stored."""
        name = dtypes_.canonical(dtype)
        stored_dtypes = {dtypes_.canonical(param.dtype) for param in self.collect_params().values()}
        if stored_dtypes - {name}:
            raise ConvertError(
                f"block '{self.name}' is frozen with weights in {' and '.join(sorted(stored_dtypes))}, a snapshot; "
                f"leave cast({name!r}) out, or freeze the net that it was made of under another policy."
            )


class FrozenParameter(gluon.Parameter):
    """A parameter of a frozen block. It takes no other value, because oneDNN has a copy of its value."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConvertError(
            f"parameter '{self.name}' is of a frozen block, a snapshot; set it in the net that it was made of, and "
            f"freeze that again."
        )

    initialize = set_data = _refuse
    _load_init = _refuse
    _init_impl = _refuse


def freeze(
    net: Any,
    policy: Union[None, str, Policy] = None,
    shapes: Optional[Any] = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    ranges: Optional[Mapping[str, float]] = None,
    ctx: Optional[mx.Context] = None,
    **changes: Unpack[PolicyChanges],
) -> gluon.SymbolBlock:
    """Return a block for inference, as fast as this machine runs the net; the net is not changed.

    BatchNorm behind a convolution, a transposed convolution or a dense layer is folded into its weight and bias. That
    is done in float32, before these are rounded. Dropout is left out. Weights are stored in the dtype in which they are
    read, not in the policy's ``param_dtype`` (under ``npx.set_np`` in float32). On a CPU MXNet's oneDNN fuses more
    operators, as in a symbol that is bound. Memory and kernels are kept from call to call (``static_alloc``,
    ``static_shape``), with control flow only memory.

    The block takes any batch size. It has no gradients, and refuses a call within ``autograd.record``. It is a
    snapshot: its parameters refuse other values, because oneDNN has copies of them. For other values freeze the net
    again. After ``hybridize`` with other flags it is right, but slower.

    Inputs and outputs are nested and ordered as in the net's own call. Floating point outputs have the policy's
    ``output_dtype``, float32 by default. Optional inputs of a net are those of its last call. A net that was not called
    is frozen with as many inputs as there are ``shapes``, or with one. For a model, outputs are one array or a flat
    list, and inputs have the symbol's order. Inputs with Gluon's names data0, data1, ... are sorted by number. For
    another order give a SymbolBlock.

    Args:
        net: A HybridBlock, converted or not, whose parameters have values; or a SymbolBlock. Or a model: (symbol,
            arg_params, aux_params), as ``convert_model`` and ``mxmp.symbol.load_checkpoint`` return it. If the class of
            a block has a ``forward`` of its own, only its ``hybrid_forward`` is frozen, with a warning.
        policy: A policy or its name. None is 'auto': on a GPU with tensor cores float16; on a CPU bfloat16 if
            processors of its kind gain by it, else float32. A net that is converted to that dtype keeps its policy.
            float16 on a CPU is emulated: right, but slow.
        shapes: Shapes of inputs by name, for ``convert_model``. For a converted net that was called they are known.
        dtypes: Dtypes of inputs by name, as ``shapes``.
        ranges: Largest magnitudes of outputs by name, as ``shapes``.
        ctx: Where the block is to run; by default where the values are.
        **changes: Fields of the policy that overrule it.

    Returns:
        A SymbolBlock, hybridized. ``export`` writes it. ``report`` names the folded nodes, and the precision of the
        others.

    Raises:
        ConvertError: If there is no graph, or a parameter has no value, or the parameters do not fit the symbol. Also
            if MXNet does not run the policy's dtype on ``ctx``.
        PolicyError: If the policy does not parse, or one of its patterns matches nothing.
        TrainerError: If a weight was written to without its float32 master.
    """
    source = _source(net, shapes, dtypes, ranges)
    context = source.context if ctx is None else ctx
    if not isinstance(context, mx.Context):
        raise ConvertError(f"freeze: ctx is {ctx!r}; expected a context, such as mx.cpu() or mx.gpu(0).")
    if isinstance(net, gluon.HybridBlock) and not isinstance(net, gluon.SymbolBlock):
        kind = plain_class(net)
        if kind.forward is not gluon.HybridBlock.forward:
            text = f"freeze: block '{net.name}': hybrid_forward is frozen, without {kind.__name__}.forward around it."
            warnings.warn(text, stacklevel=2)
    parsed = _policy(source, context, policy, changes)
    if isinstance(net, gluon.Block) and (policy is not None or parsed.blocks):  # with the blocks' marks as they are now
        source = _source_of_net(net, shapes, dtypes, ranges, parsed)
    require_bfloat16(parsed.compute_dtype, [context], source.where, runs=True)
    if context.device_type == "gpu" and context.device_id >= mx.context.num_gpus():
        raise ConvertError(f"freeze: ctx is {context}, but MXNet finds {mx.context.num_gpus()} GPUs here.")
    warn_if_slow(parsed.compute_dtype)
    return _block(source, source.converted(parsed, check=policy is not None or bool(changes)), context)


def model_for_inference(net: gluon.HybridBlock) -> Tuple[Any, ...]:
    """Return the model to export: that of a frozen block, or a net's by its own policy, float32 if it has none."""
    source, frozen = _source(net), frozen_model(net)
    if frozen is not None:
        return frozen.symbol, source.args, source.aux
    return tuple(source.converted(source.policy or Policy(), check=False))


def _policy(source: Source, context: mx.Context, policy: Any, changes: Mapping[str, Any]) -> Policy:
    """Return the policy to freeze under; for None a net's own, if its dtype is the one that is fastest on a context."""
    if policy is None and "compute_dtype" in changes:
        policy = Policy()
    if policy is not None and not is_auto(policy):
        return Policy.parse(policy, **changes)
    fastest = parse_policy(policy or AUTO, [context], **changes)
    own = source.policy if policy is None else None
    if own is not None and own.is_mixed and own.compute_dtype == fastest.compute_dtype:
        return own.replace(**changes)
    return fastest.replace(loss_scale=None)


# ------------------------------------------------------------------ from a net or a model


def _source(net: Any, shapes: Any = None, dtypes: Any = None, ranges: Any = None) -> Source:
    if isinstance(net, gluon.Block):
        return _source_of_net(net, shapes, dtypes, ranges)
    if not isinstance(net, (tuple, list, ConvertedModel)) or len(list(net)) != 3:
        size = f" of {len(net)}" if isinstance(net, (tuple, list)) else ""
        raise ConvertError(
            f"freeze: found {a_type_of(net)}{size}; expected a HybridBlock, or a model (symbol, "
            f"arg_params, aux_params), as mxmp.symbol.load_checkpoint returns it."
        )
    symbol, args, aux = net
    model = make_model(symbol, shapes, dtypes, ranges)
    if mx.util.is_np_array():
        model = model._replace(symbol=symbol.as_np_ndarray())
    check_params(symbol, args, aux, {})
    inputs = [name for name in symbol.list_arguments() if name not in args]
    if all(_NUMBERED.fullmatch(name) for name in inputs):  # MXNet lists them as the graph reads them
        inputs.sort(key=lambda name: int(name[len("data") :]))
    arrays = [*args.values(), *aux.values()]
    context = arrays[0].ctx if arrays else mx.context.current_context()
    return Source("freeze", model, dict(args), dict(aux), inputs, None, context)


def _source_of_net(
    net: gluon.Block, shapes: Any, dtypes: Any, ranges: Any, policy: Optional[Policy] = None
) -> Source:
    where, conversion = f"block '{net.name}'", conversion_of(net)
    if roots(net) != [net]:
        names = ", ".join(root.name for root in roots(net))
        raise ConvertError(f"{where} ({type(net).__name__}) has no graph of its own; freeze the blocks in it: {names}.")
    is_new = conversion is None or policy is not None
    marks = find_regions(net, policy or Policy()) if is_new else conversion.regions
    traced, sizes = _trace(net, conversion, marks, max(len(shapes or ()), 1))
    lacking = [name for name, param in traced.params.items() if not is_initialized(param)]
    if lacking:
        raise ConvertError(
            f"{where}: parameter '{lacking[0]}' has no value yet; initialize or load it, and run one batch if its "
            f"shape follows from the input's."
        )
    user_model = make_model(traced.symbol, shapes, dtypes, ranges)
    last_call = ({}, {}) if conversion is None else (conversion.ranges, traced.types)
    types, magnitudes = {**last_call[1], **user_model.dtypes}, {**last_call[0], **user_model.ranges}
    model = Model(user_model.symbol, {**sizes, **user_model.shapes}, types, magnitudes, constants=traced.data)
    states = set(traced.symbol.list_auxiliary_states())
    values = {name: param._reduce() for name, param in traced.params.items()}
    return Source(
        where,
        model,
        {name: value for name, value in values.items() if name not in states},
        {name: value for name, value in values.items() if name in states},
        [symbol.name for symbol in traced.inputs],
        traced.formats,
        next(iter(contexts_of(traced.params.values())), mx.context.current_context()),
        None if conversion is None else conversion.policy,
        block_names(net),
    )


def _trace(
    net: gluon.HybridBlock, conversion: Any, marks: BlockRegions, count: int
) -> Tuple[Trace, Dict[str, Any]]:
    """Return the float32 graph of a net, and the known shapes of its inputs.

    It is the graph of the last call for inference. Without one the net is traced with the arguments of its last call. A
    net that was not called, or only operator by operator, is traced with ``count`` inputs.
    """
    last_graphs, frozen = {} if conversion is None else conversion.last_graph_by_mode, frozen_model(net)
    own_graph = conversion.own_graph if conversion else isinstance(net, gluon.SymbolBlock) and net._cached_graph
    graph = last_graphs.get(False) or last_graphs.get(True)
    if graph and (own_graph or False in last_graphs) and marks == conversion.regions:
        return graph.trace, graph.input_shapes
    with autograd.predict_mode(), outside_regions():
        if own_graph:
            return trace(net, (), (own_graph[0], frozen.symbol if frozen else own_graph[1]), marks), {}
        if graph:  # of training, where the net may compute something else
            traced = trace(net, graph.trace.arguments, None, marks)
            traced.types = graph.trace.types
            return traced, graph.input_shapes
        called = net._cached_graph  # MXNet's graph: of a region or of training, or partitioned, perhaps
        if called:
            return trace(net, arguments(called[0], net._in_format), None, marks), {}
        inputs = [mx.sym.var(f"data{i}") for i in range(count)]
        if mx.util.is_np_array():
            inputs = [variable.as_np_ndarray() for variable in inputs]
        try:
            return trace(net, tuple(inputs), None, marks), {}
        except ConvertError as e:
            raise ConvertError(
                f"block '{net.name}' ({type(net).__name__}) cannot be traced before its first call; convert or "
                f"hybridize it, and run one batch."
            ) from e


# ------------------------------------------------------------------ to a block


def _block(source: Source, model: ConvertedModel, context: mx.Context) -> gluon.SymbolBlock:
    """Return the block of a converted model, hybridized, with its cached operator."""
    symbol, args, aux = model
    graph, can_fuse = _running_graph(source, model, context)
    running = from_graph(graph, symbol)
    inputs = [mx.sym.var(name, dtype=source.model.dtypes.get(name, dtypes_.FLOAT32)) for name in source.inputs]
    if isinstance(symbol, NumpySymbol):
        inputs = [variable.as_np_ndarray() for variable in inputs]
    block: Any = FrozenBlock(running, inputs)
    params = block.collect_params()
    params.setattr("grad_req", "null")
    params.load_dict({**args, **aux}, context, ignore_extra=True, cast_dtype=True, dtype_source="saved")
    if source.formats is not None:
        set_graph(block, (inputs, running), source.formats)
    # With static shapes MXNet runs loops wrongly, see `cache.ConvertedGraph`. Without them fused operators are slow.
    static, backend = not any(node.subgraphs for node in graph.nodes), _backend()
    block.hybridize(static_alloc=True, static_shape=static)
    if static and can_fuse and backend:
        # The block keeps the graph that runs anywhere; a call runs the operator.
        fused = running.optimize_for(backend, ctx=context)
        fused = fused.as_np_ndarray() if isinstance(symbol, NumpySymbol) else fused
        vars(block)["make_fused"] = functools.partial(make_operator, fused, inputs, params)
        set_op(block, *block.make_fused(block._flags))
    for param in params.values():
        param.__class__ = FrozenParameter
    vars(block)[FROZEN] = dataclasses.replace(model, arg_params={}, aux_params={})
    return block


def _running_graph(source: Source, model: ConvertedModel, context: mx.Context) -> Tuple[Graph, bool]:
    """Return the graph that runs a model on a context, and whether oneDNN may fuse its operators."""
    symbol, args, aux = model
    graph = to_graph(symbol)
    if context.device_type == "gpu":
        return graph, False
    shapes, types = source.model._replace(symbol=symbol).known(args, aux)
    facts = infer_network(symbol, graph, shapes, types, frozenset({**args, **aux}))
    running = emulated(graph, facts, fused=True, written=frozenset(symbol.list_inputs()))
    # A BatchNorm is left if its folded values leave the dtype's range: the backend would fold it in that dtype. The
    # backend also takes layers of float64, which oneDNN lacks ("unknown type for MKLDNN" at the call).
    left = any(node.op == "BatchNorm" and graph.nodes[node.inputs[0].node].op == "Convolution" for node in graph.nodes)
    float64_dtypes = {"float64"} & {*facts.dtypes.values(), *(node.get("dtype") for node in running.nodes)}
    return running, not (left or float64_dtypes)


def _backend() -> Optional[str]:
    """Return the backend with which MXNet partitions bound symbols on a CPU, None for none."""
    name = os.environ.get("MXNET_SUBGRAPH_BACKEND", "MKLDNN")
    return name if name != "NONE" and mx.runtime.Features().is_enabled("MKLDNN") else None
