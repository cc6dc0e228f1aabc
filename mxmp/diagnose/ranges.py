"""The range of values: of single arrays, and of the activations and gradients of a network that is measured.

`measure_ranges` and `measure_gradients` run a float32 network on batches of data: a symbol by itself, a Gluon net by
its own calls, with the graph of each outermost HybridBlock replaced by one that looks at its tensors while it runs.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, overload

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.block import _regroup
from mxnet.symbol.numpy import _Symbol as NumpySymbol

from .. import dtypes
from ..arrays import is_low_precision, to_float32
from ..errors import ConvertError
from ..gluon.blocks import roots
from ..gluon.cache import as_input
from ..gluon.conversion import Conversion
from ..gluon.storage import contexts_of, refuse_cast
from ..gluon.trace import flat_arguments
from ..graph import Graph
from ..policy import Policy
from ..report.explanation import ValueRange
from ..report.gradients import Gradients, Magnitudes
from ..symbol.inference import from_graph, infer_facts, to_graph
from ..train.loss_heads import is_recorded
from .batches import Batches, call_net, read_examples, read_loader
from .instrument import Runner, in_float32, is_unwritten, read_outputs, with_taps, zeros_of
from .kept import kept
from .progress import shown
from .subject import NetSubject, SymbolSubject, losses_of

Looking = TypeVar("Looking", bound=Callable[..., Any])

_LOG = logging.getLogger(__name__)
_NAMED = 3  # tensors that a warning names

_LARGEST = 3.4028234663852886e38  # of float32: stands for no finite value at all


def summarize(F: Any, x: Any) -> Any:
    """Return four numbers about an array or symbol, in float32: how many are inf or NaN, how many NaN, the finite ends.

    Counts of 0 are exact for arrays of any size.
    """
    x = F.BlockGrad(F.cast(x, dtype="float32"))
    product, zeros = x * 0, F.zeros_like(x)
    is_finite = product == 0
    smallest = F.min(F.where(is_finite, x, zeros + _LARGEST))
    largest = F.max(F.where(is_finite, x, zeros - _LARGEST))
    return F.stack(F.sum(product != 0), F.sum(x != x), smallest, largest)


class Summaries:
    """Sums up arrays that are not in a graph."""

    def __init__(self) -> None:
        self._operator = mx.nd.CachedOp(summarize(mx.sym, mx.sym.var("x")))

    def __call__(self, arrays: Sequence[Any]) -> List[Any]:
        """Return what `summarize` gives for each array; nothing is recorded."""
        with autograd.pause():
            return [self._operator(array.as_nd_ndarray()) for array in arrays]


def read_ranges(names: Sequence[str], sizes: Sequence[int], summaries: Sequence[mx.nd.NDArray]) -> List[ValueRange]:
    """Return what summaries of arrays of known sizes say, which all lie on one context, by one host read."""
    if not summaries:
        return []
    rows = mx.nd.concat(*[each.as_nd_ndarray() for each in summaries], dim=0).asnumpy().reshape(-1, 4).tolist()
    ranges = []
    for name, size, (bad, nans, low, high) in zip(names, sizes, rows):
        low, high = (low, high) if low <= high else (0.0, 0.0)
        ranges.append(ValueRange(name, max(size, round(bad)), round(nans), round(bad - nans), low, high))
    return ranges


def ranges_of(arrays: Dict[str, Any]) -> List[ValueRange]:
    """Return the ranges of arrays by name, all on one context."""
    sizes = [array.size for array in arrays.values()]
    return read_ranges(list(arrays), sizes, Summaries()(list(arrays.values())))


# ---------------------------------------------------------------------- graphs that are measured


class ReducedValues:
    """An operator that runs a network's graph in float32 and keeps the ranges that its tensors have had.

    They are reduced where the network runs, so that no activation outlives its readers or comes to the host.

    Attributes:
        largest: By the name of an output or input: the largest magnitude among its finite values so far, 0 if there
            was none.
        nans: By the name of those that have held NaN: how many elements were NaN.
    """

    def __init__(self, symbol: Any, without: Any) -> None:
        """Build the operator; ``without`` has the names of variables that are not looked at."""
        as_numpy = isinstance(symbol, NumpySymbol)
        symbol = in_float32(symbol).as_nd_ndarray()
        internals = symbol.get_internals()
        outputs = {name: internals[i] for i, name in enumerate(internals.list_outputs()) if name not in without}
        group = mx.sym.Group([symbol, *(summarize(mx.sym, output) for output in outputs.values())])
        self._run = Runner(group.as_np_ndarray() if as_numpy else group)
        self.inputs: List[str] = symbol.list_inputs()
        self.largest: Dict[str, float] = dict.fromkeys(outputs, 0.0)
        self.nans: Dict[str, int] = {}

    def __call__(self, values: Mapping[str, Any]) -> List[Any]:
        """Return the network's outputs, for a value of each variable; waits for the ranges."""
        results = self._run({name: to_float32(values[name]) for name in self.inputs})
        count, names = len(results) - len(self.largest), list(self.largest)
        for each in read_ranges(names, [0] * len(names), results[count:]):
            self.largest[each.name] = max(self.largest[each.name], each.magnitude)
            if each.nans:
                self.nans[each.name] = self.nans.get(each.name, 0) + each.nans
        return results[:count]


class TappedGradients:
    """An operator that runs a network's graph in float32 with a tap at each activation, and counts their gradients.

    Attributes:
        outputs: The names of the activations that have a tap.
        inputs: The names of the variables of the network.
    """

    def __init__(self, symbol: Any, values: Mapping[str, Any], heads: bool) -> None:
        """Build the operator.

        Args:
            symbol: The network.
            values: Values of its variables, which say dtypes, and which are trained: with a gradient, or recorded.
            heads: Whether its outputs have a tap too, because a loss outside of it reads them.
        """
        graph = to_graph(in_float32(symbol))
        types = {name: dtypes.canonical(array.dtype) for name, array in values.items()}
        types = {name: dtypes.FLOAT32 if dtype in dtypes.LOW_PRECISION else dtype for name, dtype in types.items()}
        facts = infer_facts(from_graph(graph, symbol), graph, {}, types, frozenset())
        trained = {name for name, array in values.items() if array.grad is not None or is_recorded(array)}
        reached = _depending(graph, trained)
        keys = [key for key in read_outputs(graph, facts, heads) if facts.dtypes[key] == dtypes.FLOAT32]
        self.is_trained, self.has_outputs = bool(trained), bool(keys)
        tapped, taps, _ = with_taps(graph, facts, [key for key in keys if key[0] in reached])
        self._names = {name: facts.output_names[key] for key, name in taps.outputs.items()}
        self.outputs, self.inputs = list(self._names.values()), symbol.list_inputs()
        self._run = Runner(from_graph(tapped, symbol))
        self._zeros: List[Dict[str, Any]] = []

    def __call__(self, values: Mapping[str, Any]) -> List[Any]:
        """Return the network's outputs, for a value of each variable."""
        wide = {name: _wide(values[name]) for name in self.inputs}
        symbol, context = self._run.symbol, next(iter(wide.values())).ctx
        shapes = symbol.infer_shape(**{name: array.shape for name, array in wide.items()})[0]
        shapes = {name: shape for name, shape in zip(symbol.list_arguments(), shapes) if name in self._names}
        with autograd.pause():
            self._zeros.append(zeros_of(shapes, context))
        return self._run({**wide, **self._zeros[-1]})

    def count(self, counts: Dict[str, Magnitudes]) -> None:
        """Add the gradients of the calls since the last count, once backward has run; waits for them."""
        for zeros in self._zeros:
            for name, zero in zeros.items():
                counts.setdefault(self._names[name], Magnitudes()).add(zero.grad.asnumpy())
        self._zeros = []


def _depending(graph: Graph, names: Iterable[str]) -> List[int]:
    """Return the positions of the nodes that depend on variables, by operators that hand gradients on."""
    names, reached = set(names), set()
    for position, node in enumerate(graph.nodes):
        read = node.name in names if node.is_variable else any(entry.node in reached for entry in node.inputs)
        if read and node.op != "BlockGrad" and not is_unwritten(node):
            reached.add(position)
    return sorted(reached)


def _wide(array: Any) -> Any:
    """Return an array in float32 if it has low precision; its gradient passes."""
    return mx.nd.amp_cast(array, dtype=dtypes.FLOAT32) if is_low_precision(array) else array


@contextlib.contextmanager
def looked_into(
    net: gluon.Block, make: Callable[[Any, Mapping[str, Any]], Looking]
) -> Iterator[Tuple[mx.Context, Dict[int, Looking]]]:
    """Have a net run in float32 by operators that ``make`` makes of its graphs, a dict that grows.

    The net, called on the context that is given with them, is as it was found after it; forward hooks on it are called
    as ever. ``make`` gets a `mxmp.gluon.trace.Trace` and the values of its variables, once for each graph.

    Raises:
        ConvertError: If the net cannot be traced, or has called none of its HybridBlocks at the end.
    """
    subject = NetSubject(net)
    runs: Dict[int, Looking] = {}  # by the id of the trace

    def forward(conversion: Conversion, *args: Any) -> Any:
        """Run a block, which its conversion traces, on arrays."""
        args = tuple(map(as_input, args))
        traced = conversion.trace_for(args)
        arrays = flat_arguments(args).arrays
        values = {symbol.name: array for symbol, array in zip(traced.inputs, arrays)}
        values.update((name, param.data(arrays[0].ctx)) for name, param in traced.params.items())
        if id(traced) not in runs:
            runs[id(traced)] = make(traced, values)
        return _regroup(runs[id(traced)](values), traced.formats[1])

    with kept(subject.net):
        for root in roots(net):
            refuse_cast(root)
            vars(root)["_call_cached_op"] = partial(forward, Conversion(root, Policy()))
            root._active = True
        yield (contexts_of(net.collect_params().values()) or [mx.context.current_context()])[0], runs
    if not runs:
        raise ConvertError(f"block '{net.name}': calling it called none of the HybridBlocks in it; measure these.")


# ---------------------------------------------------------------------- what users call


@overload
def measure_ranges(
    sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], batches: Batches, ctx: Any = None
) -> Dict[str, float]: ...


@overload
def measure_ranges(net: gluon.Block, loader: Any, *, batches: Optional[int] = None) -> Dict[str, float]: ...


def measure_ranges(*args: Any, **kwargs: Any) -> Dict[str, float]:  # noqa: D417 - the overloads have them
    """Run a float32 network on batches of data and return the largest magnitude of each tensor.

    Called as ``measure_ranges(net, loader)`` for a Gluon net, or as ``measure_ranges(sym, arg_params, aux_params,
    batches)``. The result is for the ``ranges`` of ``mxmp.gluon.convert`` and ``mxmp.symbol.convert_model``: an
    activation that is scaled by 1000 and leaves float16's range is thereby found, and kept in float32. Every tensor
    is reduced to a number where it is computed; a terminal shows a bar on stderr.

    Args:
        net: A Gluon net whose parameters have values, converted or not; it runs in float32, in inference, and is
            left as it was. Of a Block with several HybridBlocks in it the values of each are measured.
        loader: A DataLoader, a list or any other iterable of batches, or a DataIter, which is reset; of one batch a
            list, ``[(data, label)]``. A batch is an NDArray of data, a list or tuple whose last item is the label (None
            for none) and whose others are the net's inputs, or a DataBatch.
        sym: The network, in inference; the bodies of its loops are not looked into. It runs in float32 where casts of
            its own ask for low precision.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states, likewise.
        batches: For a net how many batches are read, all unless given. For a symbol batches of its inputs: dicts of
            NDArrays by name, or a DataIter, which is reset and read to its end. Labels
            may be left out as for `compare`; every other input must be there.
        ctx: Where a symbol runs; the CPU unless given. A net runs on the first of its contexts.

    Returns:
        By the name of an output ('conv0_output') or input, parameters left out: the largest magnitude
        among its finite values, 0 if there is none. An attention mask's -inf is none: float16 has it. A warning
        of the log counts NaN.

    Raises:
        ConvertError: If the parameters do not fit or have no values; if there is no batch, one lacks an input or
            does not fit; or if the net cannot be traced.
    """
    return (_ranges_of_net if _is_of_net(args, kwargs) else _ranges_of_symbol)(*args, **kwargs)


@overload
def measure_gradients(
    sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], batches: Batches, ctx: Any = None
) -> Gradients: ...


@overload
def measure_gradients(
    net: gluon.Block, loss: Any, loader: Any, *, batches: Optional[int] = None
) -> Gradients: ...


def measure_gradients(*args: Any, **kwargs: Any) -> Gradients:  # noqa: D417 - the overloads have them
    """Run a float32 network forward and backward and count the gradients of its activations by magnitude.

    Called as ``measure_gradients(net, loss, loader)`` for a Gluon net, or as ``measure_gradients(sym, arg_params,
    aux_params, batches)``. A loss scale is chosen for them: without one, many become 0 in float16. Nothing
    is trained; dropout drops and BatchNorm takes the batch's statistics as in training, and its running ones stay as
    they are. One gradient after the other is counted on the host while backward runs, and none is kept.

    Args:
        net: A Gluon net as for `measure_ranges`; gradients that it holds stay as they are.
        loss: Called with the net's outputs and the label; a Gluon loss, for example. Its result, an NDArray
            or a list of them, is summed, as ``backward`` does.
        loader: As for `measure_ranges`, with labels.
        sym: The network with its loss heads, or with losses as outputs; bodies of its loops are not looked into.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states, likewise.
        batches: For a net how many batches are read, all unless given. For a symbol batches of its inputs with
            labels: dicts of NDArrays by name, or a DataIter, which is reset and read to its end. None may be left out.
        ctx: Where a symbol runs; the CPU unless given.

    Returns:
        A mapping from the name of an output ('conv0_output') to the magnitudes of its gradient over all batches.
        ``print`` shows which share of all lies in which power of two, and how many become 0 in float16. Left out are
        outputs without a gradient in training, or with 0 everywhere: outputs that nothing reads, those of loss heads,
        and those that depend on no parameter that is trained.

    Raises:
        ConvertError: If the parameters do not fit or have no values; if there is no batch, one lacks an input or
            does not fit; if ``loss`` gives no NDArray; or if the network has no activation to measure or no parameter
            to train.

    References:
        Micikevicius et al., "Mixed Precision Training", 2017, https://arxiv.org/abs/1710.03740, figure 3
    """
    if not _is_of_net(args, kwargs):
        return _gradients_of_symbol(*args, **kwargs)
    if len(args) + len({"net", "loss", "loader"} & kwargs.keys()) < 3:
        raise ConvertError(
            "measure_gradients: the loss or the loader of a Gluon net is missing; call measure_gradients(net, loss, "
            "loader), with a loss such as mx.gluon.loss.L2Loss()."
        )
    return _gradients_of_net(*args, **kwargs)


def _is_of_net(args: Any, kwargs: Mapping[str, Any]) -> bool:
    first = args[0] if args else kwargs.get("net", kwargs.get("sym"))
    if isinstance(first, mx.mod.BaseModule):
        raise ConvertError(
            f"expected a Gluon net, or a symbol with its parameters, found a {type(first).__name__}; give "
            f"module.symbol and *module.get_params()."
        )
    return "net" in kwargs or isinstance(first, gluon.Block)


def _ranges_of_net(net: gluon.Block, loader: Any, *, batches: Optional[int] = None) -> Dict[str, float]:
    making = looked_into(net, lambda traced, values: ReducedValues(traced.symbol, traced.params))
    with making as (ctx, runs), autograd.pause(train_mode=False):
        for example in shown("measuring ranges", read_examples(loader, batches, False, ctx), batches or loader):
            call_net(net, example.inputs)
    return _ranges(list(runs.values()))


def _ranges_of_symbol(
    sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], batches: Batches, ctx: Any = None
) -> Dict[str, float]:
    subject = SymbolSubject(sym, arg_params, aux_params, ctx)
    run = ReducedValues(subject.model.symbol, {**subject.model.arg_params, **subject.model.aux_params})
    for batch in shown("measuring ranges", read_loader(batches, name="batches"), batches):
        (values,) = subject.take([batch]).filled()
        run({name: values[name].as_in_context(subject.context) for name in run.inputs})
    return _ranges([run])


def _ranges(runs: Sequence[ReducedValues]) -> Dict[str, float]:
    """Return the largest magnitudes of several graphs; a warning counts NaN in the order of the tensors."""
    nans: Dict[str, int] = {}
    for run in runs:
        nans.update(run.nans)
    _warn("measure_ranges: NaN in", nans, "ranges are those of the other elements, 0 where there are none")
    return {name: max(each.largest.get(name, 0.0) for each in runs) for run in runs for name in run.largest}


def _gradients_of_net(
    net: gluon.Block, loss: Any, loader: Any, *, batches: Optional[int] = None
) -> Gradients:
    counts: Dict[str, Magnitudes] = {}
    if not callable(loss):
        raise ConvertError(f"loss is a {type(loss).__name__}; expected a function of the net's output and the label.")
    with looked_into(net, lambda traced, values: TappedGradients(traced.symbol, values, heads=True)) as (ctx, runs):
        if all(param.grad_req == "null" for param in net.collect_params().values()):
            raise ConvertError(f"block '{net.name}' has no parameter to train, so there are no gradients.")
        for example in shown("measuring gradients", read_examples(loader, batches, True, ctx), batches or loader):
            with autograd.record():
                losses = losses_of(loss, call_net(net, example.inputs), example.label)
            autograd.backward(losses)
            for run in runs.values():
                run.count(counts)
    return _gradients(list(runs.values()), counts)


def _gradients_of_symbol(
    sym: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], batches: Batches, ctx: Any = None
) -> Gradients:
    subject = SymbolSubject(sym, arg_params, aux_params, ctx)
    model, ctx = subject.model, subject.context
    held = {**model.arg_params, **model.aux_params}
    params = {name: array.copyto(ctx) for name, array in held.items()}  # BatchNorm writes its statistics
    for name in model.arg_params:
        if dtypes.canonical(params[name].dtype) in dtypes.PRECISIONS:
            params[name].attach_grad()
    counts: Dict[str, Magnitudes] = {}
    runs: Dict[Any, TappedGradients] = {}
    for batch in shown("measuring gradients", read_loader(batches, name="batches"), batches):
        (given,) = subject.take([batch]).filled(labels=True)
        values = {name: params.get(name, array).as_in_context(ctx) for name, array in given.items()}
        types = tuple((name, dtypes.canonical(array.dtype)) for name, array in values.items())
        if types not in runs:  # one graph for all shapes
            run = runs[types] = TappedGradients(model.symbol, values, heads=False)
            if not run.has_outputs:
                raise ConvertError(
                    "sym has no output in floating point that an operator reads: there is nothing to measure."
                )
            if not run.is_trained:
                raise ConvertError(
                    "sym reads no argument of arg_params in floating point, so there is nothing to train."
                )
        with autograd.record():
            outputs = runs[types](values)
        autograd.backward(outputs)
        runs[types].count(counts)
    return _gradients(list(runs.values()), counts)


def _gradients(runs: Sequence[TappedGradients], counts: Mapping[str, Magnitudes]) -> Gradients:
    """Return the counts in the order of the network, but for gradients that are 0 everywhere; warn of inf and NaN."""
    names = dict.fromkeys(name for run in runs for name in run.outputs if name in counts)
    gradients = {name: counts[name] for name in names if counts[name].total or counts[name].nonfinite}
    bad = {name: each.nonfinite for name, each in gradients.items() if each.nonfinite}
    _warn("measure_gradients: inf or NaN in the gradients of", bad, "all others are counted")
    return Gradients(gradients)


for _function in (_ranges_of_net, _ranges_of_symbol, _gradients_of_net, _gradients_of_symbol):
    # Python's own errors about arguments name the function that users call.
    _function.__qualname__ = "measure" + _function.__name__[: _function.__name__.index("_of_")]
    _function.__name__ = _function.__qualname__


def _warn(subject: str, counts: Mapping[str, int], otherwise: str) -> None:
    if counts:
        named = ", ".join(f"'{name}' ({count} elements)" for name, count in list(counts.items())[:_NAMED])
        more = f" and {len(counts) - _NAMED} more" if len(counts) > _NAMED else ""
        text = "%s %s%s, in float32; %s. diagnose.find_nonfinite says where it comes from."
        _LOG.warning(text, subject, named, more, otherwise)
