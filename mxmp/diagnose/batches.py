"""Read batches as users give them, in one way for every function of `mxmp.diagnose` and `mxmp.tune`.

A batch has the form that a DataLoader yields: an array, or a tuple or list of arrays, which may be nested. It may also
be a DataBatch. For a symbol or Module it may be a dict of arrays by input. Arrays are NDArrays or arrays of numpy.

Given are one batch, or several: a DataLoader, a DataIter, a list of batches, any other iterable. A list is one batch if
an array is among its items, as in ``[x, y]``, and else a list of batches.

The inputs of a Gluon net come first in a batch, and the labels of its loss last. The signatures of both say how many.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import mxnet as mx
import numpy as np
from mxnet import gluon

from .. import dtypes
from ..arrays import is_low_precision, to_float32, tree_leaves, tree_map
from ..errors import ConvertError, a_type_of, did_you_mean, listed, mxnet_reason
from ..gluon.blocks import plain_class
from ..gluon.storage import contexts_of
from ..symbol import ConvertedModel
from ..symbol.arguments import label_names

Batches = Union[Iterable[Any], mx.io.DataIter]
"""One batch or several, in any of the forms above."""

LossFunction = Callable[..., Any]

Shapes = Mapping[str, Tuple[int, ...]]

OUTPUTS = "outputs"
"""The loss of a net that computes its losses by itself and returns them."""

_NUMBERS = "biuf"  # The kinds of numpy's dtypes that MXNet has.
_BATCH = "an array, a tuple or list of arrays, a DataBatch, or, for a symbol or Module, a dict of arrays by input"
_LOADER = "a DataLoader, a DataIter, a list of batches, or one batch: "


class Batch(NamedTuple):
    """A batch that was read.

    Attributes:
        arrays: Arrays of MXNet or numpy, perhaps nested in lists and tuples, None among them; labels last.
        names: Their names, where they are known.
        labels: How many of them are labels; None if that is not known.
        bucket: The key of the bucket that a DataBatch is of, if it has one.
    """

    arrays: Tuple[Any, ...]
    names: Tuple[str, ...] = ()
    labels: Optional[int] = None
    bucket: Any = None

    def for_net(
        self, inputs: Arguments, loss: Optional[LossFunction] = None, labels: Optional[int] = None
    ) -> Example:
        """Return the arguments of a net and the labels of its loss.

        Args:
            inputs: How many arguments the net takes.
            loss: The loss that reads the labels, None for none.
            labels: How many of the last arrays are labels, if the user says so.

        Raises:
            ConvertError: If the batch is a dict, or has no more arrays than there are labels.
        """
        if self.names and self.labels is None:
            raise ConvertError(
                "batches: a batch is a dict, which is for a symbol or Module; a Gluon net takes an array, a tuple or "
                "list of arrays in the order of its inputs, or a DataBatch."
            )
        count, total = self._count_labels(inputs, loss, labels), len(self.arrays)
        if type(count) is not int or not 0 <= count < total:
            raise ConvertError(
                f"labels={count!r}: a batch has {total} array{'s' * (total > 1)}, labels included, and the net needs "
                f"at least one; expected at most {total - 1}, or batches with the net's inputs before them."
            )
        arrays = tree_map(self.arrays, _for_net)
        return Example(arrays[: total - count], arrays[total - count :])

    def _count_labels(self, inputs: Arguments, loss: Optional[LossFunction], labels: Optional[int]) -> int:
        known = self.labels if labels is None else labels
        if known is not None:
            return known
        total = len(self.arrays)
        if loss is not None:
            reads = arguments_of(loss)  # The outputs come first, then the labels.
            for count in range(max(reads.least - 1, 0), min(total, reads.most)):
                if inputs.allows(total - count):
                    return count
        elif inputs.least < inputs.most < _ANY and inputs.least < total:
            raise ConvertError(
                f"labels: the net takes {inputs} arrays, and a batch has {total}, of which the last may be an input or "
                f"a label; say how many are labels, such as labels=0."
            )
        return max(total - inputs.most, 0)

    def by_name(self, names: Mapping[str, str]) -> Dict[str, Any]:
        """Return NDArrays by the names of a network's inputs, in the dtypes that the network declares for them.

        Arrays without names are in the order of the inputs. Labels that the network does not read are left out.

        Args:
            names: The dtypes of the network's inputs by name.

        Raises:
            ConvertError: If an input is no array, or the network has none of its name.
        """
        data = len(self.arrays) - (self.labels or 0)
        pairs = list(zip(self.names or names, self.arrays))
        if self.names:
            pairs = [pair for place, pair in enumerate(pairs) if place < data or pair[0] in names]
        for name, array in pairs:
            if not _is_array(array):
                raise ConvertError(f"batches: input {name!r} is {a_type_of(array)}; expected an array.")
            if name not in names:
                raise ConvertError(f"batches: the network has no input {name!r}{did_you_mean(name, names)}.")
            if not array.shape and not mx.util.is_np_shape():
                raise ConvertError(f"batches: input {name!r} has shape (), unknown to MXNet; give shape (1,).")
        return {name: _as_dtype(array, names[name]) for name, array in pairs}


class Example(NamedTuple):
    """The inputs of a net and the labels of its loss, which are one batch."""

    inputs: Tuple[Any, ...]
    labels: Tuple[Any, ...]

    def on_context_of(self, net: gluon.Block) -> Example:
        """Return the arrays on a context of the net: that of the first input if the net is there, else the first."""
        contexts = contexts_of(net.collect_params().values())
        first = next((each.ctx for each in self.inputs if isinstance(each, mx.nd.NDArray)), None)
        if not contexts:
            return self
        ctx = first if first in contexts else contexts[0]
        return Example(*tree_map(tuple(self), lambda value: _on(value, ctx)))


# ---------------------------------------------------------------------- one batch or several


def read_batches(given: Batches, max_batches: Optional[int] = None) -> Iterator[Batch]:
    """Yield the batches that a user gives, at most ``max_batches``. A DataIter is at its beginning before and after.

    Raises:
        ConvertError: If there is no batch, or something else is among them; or if ``max_batches`` is no count.
    """
    if max_batches is not None and (type(max_batches) is not int or max_batches < 1):
        raise ConvertError(f"max_batches is {max_batches!r}; expected how many batches to read, 1 or more.")
    if is_batch(given):
        yield _read(given)
        return
    unfit = (gluon.Block, mx.sym.Symbol, str, bytes)
    iterator: Any = given if isinstance(given, mx.io.DataIter) else None
    if isinstance(given, unfit) or not (iterator is not None or hasattr(given, "__iter__")):
        raise ConvertError(f"batches is {a_type_of(given)}; expected {_LOADER}{_BATCH}.")
    if iterator is not None:
        iterator.reset()
    empty = True
    try:
        for batch in itertools.islice(given, max_batches):
            empty = False
            yield _read(batch, iterator)
    finally:
        if iterator is not None:  # Module.fit does not reset it before its first epoch.
            iterator.reset()
    if empty:
        raise ConvertError("batches is empty; give one batch at least.")


def is_batch(given: Any) -> bool:
    """Return whether something is one batch: a list is if an array, or None in the place of one, is among its items."""
    if isinstance(given, list):
        return any(each is None or _is_array(each) for each in given)
    return _is_array(given) or isinstance(given, (tuple, Mapping, mx.io.DataBatch))


def _is_array(value: Any) -> bool:
    return isinstance(value, (mx.nd.NDArray, np.ndarray))


def _read(batch: Any, iterator: Optional[mx.io.DataIter] = None) -> Batch:
    """Return a batch; the ``iterator`` that it is of may fill its arrays again, and has their names."""
    if isinstance(batch, mx.io.DataBatch):
        described = batch if iterator is None else iterator
        labels = list(batch.label or ())
        descriptions = [*(described.provide_data or ()), *((described.provide_label or ()) if labels else ())]
        arrays, names = _checked((*batch.data, *labels)), tuple(each[0] for each in descriptions)
        arrays = arrays if iterator is None else tree_map(arrays, lambda each: each.copy())
        return Batch(arrays, names if len(names) == len(arrays) else (), len(labels), batch.bucket_key)
    if isinstance(batch, Mapping):
        return Batch(_checked(tuple(batch.values())), tuple(batch))
    if _is_array(batch):
        return Batch(_checked((batch,)))
    if not isinstance(batch, (list, tuple)) or not batch:
        article = "an empty" if isinstance(batch, (list, tuple)) else "a"
        raise ConvertError(f"batches holds {article} {type(batch).__name__}; expected {_BATCH}.")
    if all(each is None for each in tree_leaves(batch)):
        raise ConvertError(f"batches: a batch holds no array; expected {_BATCH}.")
    return Batch(_checked(tuple(batch)))


def _checked(arrays: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """Return arrays, perhaps nested; ConvertError if something else is among them, or one is empty or of no numbers."""
    for each in tree_leaves(arrays):
        if each is not None and not _is_array(each):
            raise ConvertError(f"batches: a batch holds {a_type_of(each)}; expected {_BATCH}.")
        if isinstance(each, np.ndarray) and each.dtype.kind not in _NUMBERS:
            raise ConvertError(f"batches: an array has dtype {each.dtype}; expected numbers.")
        if each is not None and 0 in each.shape:
            raise ConvertError(f"batches: an array has shape {each.shape}, so that there is nothing to run.")
    return arrays


# ---------------------------------------------------------------------- arrays


def _for_net(value: Any) -> Any:
    """Return an array of MXNet as a net gets it: floats in float32, integers as they are; anything else as it is.

    It is an array of ``mx.np`` where nets work on these: after ``npx.set_np()``. It is not part of a graph that the
    user has recorded, which a backward pass here would free.
    """
    if not _is_array(value):
        return value
    if isinstance(value, np.ndarray):
        make = mx.np.array if mx.util.is_np_array() else mx.nd.array
        return make(value, dtype=value.dtype if value.dtype.kind in "iub" else dtypes.FLOAT32)
    value = value.detach()
    return to_float32(value) if is_low_precision(value) or np.dtype(value.dtype) == np.float64 else value


def _as_dtype(array: Any, dtype: str) -> mx.nd.NDArray:
    """Return an NDArray in the dtype of an input; one of integers keeps its own unless numpy gives it."""
    if isinstance(array, np.ndarray):
        return mx.nd.array(array, dtype=dtype)
    known = (*dtypes.PRECISIONS, "float64")
    has_point = dtypes.canonical(array.dtype) in known and dtype in known
    return array.astype(dtype) if has_point and dtypes.canonical(array.dtype) != dtype else array


def _on(value: Any, ctx: mx.Context) -> Any:
    """Return an array on a context."""
    # That of mx.np has an as_in_context too, which warns that it is deprecated.
    if not isinstance(value, mx.nd.NDArray):
        return value
    return value.as_in_ctx(ctx) if isinstance(value, mx.np.ndarray) else value.as_in_context(ctx)


# ---------------------------------------------------------------------- signatures of nets and losses.


class Arguments(NamedTuple):
    """How many positional arguments a function takes."""

    least: int
    most: int

    def allows(self, count: int) -> bool:
        """Return whether it takes so many."""
        return self.least <= count <= self.most

    def __str__(self) -> str:
        if self.most == _ANY:
            return f"{self.least} or more"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


_ANY = 2**31


def arguments_of(function: Callable[..., Any]) -> Arguments:
    """Return how many arguments a net, a loss or any other function takes, as far as its signature says."""
    if isinstance(function, gluon.SymbolBlock):
        count = len(function._cached_graph[0])
        return Arguments(count, count)
    own: Any = {}
    skipped = 0
    if isinstance(function, gluon.Block):
        kind, skipped = plain_class(function), 1
        has_call = kind.__call__ is not gluon.Block.__call__  # A recurrent layer has one: its states are optional.
        is_hybrid = isinstance(function, gluon.HybridBlock) and kind.forward is gluon.HybridBlock.forward
        if is_hybrid and not has_call:
            own, skipped = function._reg_params, 2
        function = kind.__call__ if has_call else kind.hybrid_forward if is_hybrid else kind.forward
    try:
        given = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # The function is written in C.
        return Arguments(0, _ANY)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [each for each in given if each.kind in positional][skipped:]
    taken = [each for each in taken if each.name not in own]
    least = sum(each.default is inspect.Parameter.empty for each in taken)
    has_rest = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in given)
    return Arguments(least, _ANY if has_rest else len(taken))


def losses_of(loss: LossFunction, outputs: Any, labels: Sequence[Any]) -> Sequence[Any]:
    """Return the losses of a batch, NDArrays, of a loss that is called as its signature says.

    The outputs are one argument, ``loss(outputs, label)``, or several, ``loss(scores, boxes, label)``. So are labels.

    Raises:
        ConvertError: If the loss takes neither, fails, or gives something else.
    """
    given = _arguments_for(loss, outputs, labels)
    try:
        value = loss(*given)
    except (AssertionError, AttributeError, TypeError) as e:
        if not isinstance(given[0], (list, tuple)):
            raise
        raise ConvertError(
            f"loss fails with {type(e).__name__}; the net gives {len(outputs)} outputs, and loss got them as one "
            f"{type(outputs).__name__}. Give a function that reads them, such as "
            f"loss=lambda outputs, label: loss(outputs[0], label)."
        ) from e
    except (mx.MXNetError, ValueError) as e:  # A reshape raises ValueError.
        labelled = " and ".join(f"a label of shape {_shape(each)}" for each in labels) or "no label"
        shapes = f"an output of shape {_shape(outputs)} and {labelled}"
        raise ConvertError(f"batches: the loss fails on {shapes}: {mxnet_reason(e)}") from e
    losses = list(tree_leaves(value))
    if not losses or not all(isinstance(each, mx.nd.NDArray) for each in losses):
        kind = ", ".join(type(each).__name__ for each in losses) or "nothing"
        raise ConvertError(f"loss gave {kind}; expected the loss of the batch, an NDArray of any shape.")
    return losses


def _arguments_for(loss: LossFunction, outputs: Any, labels: Sequence[Any]) -> Tuple[Any, ...]:
    """Return the arguments of a loss: outputs and labels, each as one argument or as several."""
    takes, several = arguments_of(loss), isinstance(outputs, (list, tuple))
    ways: List[Tuple[Any, ...]] = [(outputs, *labels)]
    ways += [(*outputs, *labels)] if several else []
    ways += [(outputs, list(labels))] if len(labels) > 1 else []
    ways += [(outputs,)] if takes.most == 1 else []  # It reads no label.
    fitting = next((way for way in ways if takes.allows(len(way))), None)
    if fitting is None:
        count = len(outputs) if several else 1
        text = f"the net gives {count} output{'s' * (count > 1)}, and a batch has {len(labels) or 'no'} label"
        raise ConvertError(
            f"loss takes {takes} arguments; {text}{'s' * (len(labels) > 1)} for it. Give batches with the labels that "
            f"it reads, behind the net's inputs, or say how many there are by labels=."
        )
    return fitting


def _shape(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_shape, value))})"
    return str(getattr(value, "shape", value))


# ---------------------------------------------------------------------- inputs of symbols.


def inputs_of(symbol: Any, params: Collection[str], order: Sequence[str] = ()) -> Dict[str, str]:
    """Return the dtypes that a symbol's inputs declare, float32 without, by name, labels among them.

    They are in the ``order`` given, that of a Module's data and labels, and else as MXNet lists them.
    """
    inputs = order or [name for name in symbol.list_inputs() if name not in params]
    attributes = symbol.attr_dict()
    flags = {name: attributes.get(name, {}).get("__dtype__", "") for name in inputs}
    return {name: dtypes.from_flag(flag) or dtypes.FLOAT32 for name, flag in flags.items()}


def fill_inputs(model: ConvertedModel, batch: Mapping[str, Any]) -> Tuple[Dict[str, Any], FrozenSet[str]]:
    """Return the values of all inputs by name, and the names of the labels that a batch lacks, whose values are zeros.

    Raises:
        ConvertError: If the batch does not fit the parameters, or lacks an input that is no label.
    """
    sym, given = model.symbol, {**model.arg_params, **model.aux_params, **batch}
    sizes = require_fit(sym, {name: array.shape for name, array in given.items()}, list(batch))
    missing = {name: size for name, size in zip(sym.list_arguments(), sizes) if name not in given}
    optional = label_names(sym) if missing else ()
    for name, size in missing.items():
        if name not in optional or not size or 0 in size:
            raise ConvertError(f"batches: a batch lacks the input '{name}'; give it, also if it is a label.")
    return {**given, **{name: mx.nd.zeros(size) for name, size in missing.items()}}, frozenset(missing)


def require_fit(symbol: Any, shapes: Shapes, inputs: Sequence[str]) -> List[Any]:
    """Return the shapes of all arguments of a symbol, as far as MXNet infers them; ConvertError if they do not fit.

    ``shapes`` has those of parameters and of ``inputs``, which a batch has.
    """
    known = {name: shapes[name] for name in symbol.list_inputs() if name in shapes}
    batch = {name: known[name] for name in inputs}

    def inferred(of: Shapes) -> Tuple[List[Any], Dict[str, Any]]:
        args, _, aux = symbol.infer_shape_partial(**of)
        sizes = zip((*symbol.list_arguments(), *symbol.list_auxiliary_states()), (*(args or ()), *(aux or ())))
        return list(args or ()), {name: size for name, size in sizes if size and min(size) > 0}  # else not known

    with contextlib.suppress(mx.MXNetError):
        args, needed = inferred(known)
        # MXNet overwrites some shapes that do not fit, such as BatchNorm's.
        if all(needed.get(name, shape) == shape for name, shape in known.items()):
            return args
    text = " and ".join(f"'{name}' has shape {shape}" for name, shape in batch.items())
    try:
        # MXNet names one of the shapes that do not fit; of the batch by itself it infers all.
        needed = inferred(batch)[1]
        unfit = [name for name, shape in known.items() if needed.get(name, shape) != shape]
        if not unfit:
            return inferred(known)[0]
    except mx.MXNetError as e:
        raise ConvertError(f"batches: {text}: {mxnet_reason(e)}") from e
    texts = [f" of shape {known[name]} would have to be {needed[name]}" for name in unfit]
    raise ConvertError(
        f"batches: {text}, for which {listed(unfit, texts)}: give batches of another shape, or the parameters of this "
        f"network."
    )
