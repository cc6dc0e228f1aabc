"""Batches as users give them, read in one way for every function; and what is said of those that do not fit.

A batch is an array, a tuple or list of arrays (as a DataLoader gives), or a DataBatch; of a symbol or Module a dict of
arrays by input too, for a Gluon net does not say what its inputs and the label are called.
Several batches are an iterable of such: a DataLoader, a DataIter, or a list of tuples, lists, dicts or DataBatches.
Arrays are NDArrays, or arrays of numpy. A loader is always several batches, so that a list is one of batches there.
Elsewhere a list with an array among its items is one batch: ``[[x, length], y]``, as a DataLoader nests it.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from types import MappingProxyType
from typing import (
    Any,
    Collection,
    Dict,
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
from ..arrays import leaves, nested
from ..errors import ConvertError, InferenceError, MxmpError, did_you_mean, listed, mxnet_reason
from ..gluon.storage import contexts_of
from ..symbol import ConvertedModel
from ..symbol.arguments import label_names

Batches = Union[Iterable[Any], mx.io.DataIter]
"""Several batches: an iterable of them."""

Shapes = Mapping[str, Tuple[int, ...]]

_NUMBERS = "biuf"  # the kinds of numpy's dtypes that MXNet has
_BATCH = "an array, a tuple or list of arrays, a DataBatch, or, of a symbol or Module, a dict of arrays by input"


class Batch(NamedTuple):
    """A batch that was read.

    Attributes:
        arrays: Arrays of MXNet or numpy, perhaps nested in lists and tuples, None among them; labels last.
        names: Their names, where they are known.
        labels: How many of them are labels; None if that is not known.
        bucket: Of a DataBatch, the key of its bucket, if it has one.
    """

    arrays: Tuple[Any, ...]
    names: Tuple[str, ...] = ()
    labels: Optional[int] = None
    bucket: Any = None

    def for_net(self, labelled: bool) -> Example:
        """Return what a net is called with, and the label, the last array if ``labelled`` and not known otherwise."""
        if self.names and self.labels is None:
            raise ConvertError(
                "batches: a batch is a dict, which is for a symbol or Module; a Gluon net takes an array, a tuple or "
                "list of arrays in the order of its inputs, or a DataBatch."
            )
        labels = self.labels if self.labels is not None else int(labelled and len(self.arrays) > 1)
        arrays = nested(self.arrays, _of_mxnet)
        inputs, last = arrays[: len(arrays) - labels], arrays[len(arrays) - labels :]
        return Example(inputs, last[0] if labels == 1 else list(last) or None, bool(labels))

    def by_name(self, names: Mapping[str, str]) -> Dict[str, Any]:
        """Return NDArrays by the names of a network's inputs, given with dtypes; without names they are in its order.

        Arrays of numpy get these dtypes.
        """
        if self.labels:  # those of an iterator, which a network without a loss does not read
            return self._without_unread(names).by_name(names)
        if not self.names and len(self.arrays) > len(names):
            raise ConvertError(
                f"batches: a batch has {len(self.arrays)} arrays; the network has the inputs {', '.join(names)}."
            )
        arrays = dict(zip(self.names or names, self.arrays))
        for name, array in arrays.items():
            if not _is_array(array):
                raise ConvertError(f"batches: input {name!r} is a {type(array).__name__}; expected an array.")
            if name not in names:
                raise ConvertError(f"batches: the network has no input {name!r}{did_you_mean(name, names)}.")
        made = ((name, array, isinstance(array, np.ndarray)) for name, array in arrays.items())
        return {name: mx.nd.array(array, dtype=names[name]) if new else array for name, array, new in made}

    def _without_unread(self, names: Mapping[str, str]) -> Batch:
        """Return the batch without the labels that a network lacks."""
        data = len(self.arrays) - int(self.labels or 0)
        if not self.names:
            return Batch(self.arrays[: max(data, len(names))])
        kept = [i for i, name in enumerate(self.names) if i < data or name in names]
        return Batch(tuple(self.arrays[i] for i in kept), tuple(self.names[i] for i in kept))


class Example(NamedTuple):
    """A batch of a net: what it is called with, and the label for the loss, which may be None."""

    inputs: Tuple[Any, ...]
    label: Any
    has_label: bool

    def on(self, ctx: mx.Context) -> Example:
        """Return the same on a context."""
        inputs, label = nested((self.inputs, self.label), lambda value: _on(value, ctx))
        return Example(inputs, label, self.has_label)

    def beside(self, net: gluon.Block) -> Example:
        """Return the same on a context of a net's parameters: that of the first input if it is one, or the first."""
        known = contexts_of(net.collect_params().values())
        first = next((each.ctx for each in self.inputs if isinstance(each, mx.nd.NDArray)), None)
        return self.on(first if first in known else known[0]) if known else self


def one_batch(given: Any) -> Batch:
    """Return a batch; ConvertError if it is none, or several."""
    if _is_batch(given) or (isinstance(given, list) and given and not _are_batches(given)):
        return _read(given)
    if given is None or isinstance(given, str) or not isinstance(given, (Iterable, mx.io.DataIter)):
        raise ConvertError(f"batch is a {type(given).__name__}; expected {_BATCH}.")
    count = f" of {len(given)}" if isinstance(given, list) else ", which gives several"
    raise ConvertError(f"batch is a {type(given).__name__}{count} batches; give one of them: {_BATCH}.")


def some_batches(given: Any) -> Iterator[Batch]:
    """Yield batches, of which one or several are given; ConvertError if there is none, or one is none."""
    return map(_read, [given]) if _is_batch(given) else read_loader(given, name="batches")


def read_loader(loader: Any, count: Optional[int] = None, name: str = "loader") -> Iterator[Batch]:
    """Yield the batches of an iterable, at most ``count``; a DataIter is read from its beginning.

    Raises:
        ConvertError: If it is no iterable of batches, or has none.
    """
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConvertError(f"batches is {count!r}; expected how many batches to read, 1 or more.")
    unfit = (mx.nd.NDArray, np.ndarray, Mapping, gluon.Block, mx.sym.Symbol, mx.io.DataBatch, str)
    if isinstance(loader, unfit) or not (isinstance(loader, mx.io.DataIter) or hasattr(loader, "__iter__")):
        raise ConvertError(
            f"{name} is a {type(loader).__name__}; expected a DataLoader, a list of batches or a DataIter."
        )
    if isinstance(loader, tuple) and any(map(_is_array, loader)):
        items = ", ".join(f"({', '.join(map(str, each.shape))})" if _is_array(each) else "..." for each in loader)
        raise ConvertError(
            f"{name} is a tuple of {len(loader)} arrays, of shapes {items}, which is one batch; give a list of "
            f"batches: [(a, b, label)]."
        )
    if isinstance(loader, mx.io.DataIter):
        loader.reset()
    empty = True
    for batch in itertools.islice(loader, count):
        empty = False
        yield _read(batch, name, loader if isinstance(loader, mx.io.DataIter) else None)
    if empty:
        raise ConvertError(f"{name} is empty; give one batch at least.")


def read_examples(loader: Any, count: Optional[int], labels: bool, ctx: mx.Context) -> Iterator[Example]:
    """Yield the batches of a net, on a context, as `read_loader`; ConvertError if ``labels`` and one has none."""
    for batch in read_loader(loader, count):
        example = batch.for_net(True)
        if labels and not example.has_label:
            raise ConvertError(
                "loader: a batch has no label; give a list of batches, [(data, label)], with None for a loss without "
                "labels."
            )
        yield example.on(ctx)


def _is_batch(given: Any) -> bool:
    """Return whether something is one batch: a list is if an array is among its items."""
    if isinstance(given, list):
        return any(map(_is_array, given))
    return _is_array(given) or isinstance(given, (tuple, Mapping, mx.io.DataBatch))


def _are_batches(items: Sequence[Any]) -> bool:
    """Return whether all items of a list can be batches."""
    return all(isinstance(each, (Mapping, mx.io.DataBatch, tuple, list)) for each in items)


def _is_array(value: Any) -> bool:
    return isinstance(value, (mx.nd.NDArray, np.ndarray))


def _read(batch: Any, name: str = "batches", described: Any = None) -> Batch:
    if isinstance(batch, mx.io.DataBatch):
        described = described if described is not None else batch
        labels = list(batch.label or ())
        descriptions = [*(described.provide_data or ()), *((described.provide_label or ()) if labels else ())]
        arrays = _checked((*batch.data, *labels), name)
        names = tuple(each[0] for each in descriptions)
        return Batch(arrays, names if len(names) == len(arrays) else (), len(labels), batch.bucket_key)
    if isinstance(batch, Mapping):
        return Batch(_checked(tuple(batch.values()), name), tuple(batch))
    if _is_array(batch):
        return Batch(_checked((batch,), name))
    if not isinstance(batch, (list, tuple)) or not batch:
        article = "an empty" if isinstance(batch, (list, tuple)) else "a"
        raise ConvertError(f"{name} holds {article} {type(batch).__name__}; expected {_BATCH}.")
    return Batch(_checked(tuple(batch), name))


def _checked(arrays: Tuple[Any, ...], name: str) -> Tuple[Any, ...]:
    """Return arrays, perhaps nested; ConvertError if something else is among them, or one is empty or of no numbers."""
    for each in arrays:
        if isinstance(each, (list, tuple)):
            _checked(tuple(each), name)
        elif each is not None and not _is_array(each):
            raise ConvertError(f"{name}: a batch holds a {type(each).__name__}; expected {_BATCH}.")
        elif isinstance(each, np.ndarray) and each.dtype.kind not in _NUMBERS:
            raise ConvertError(f"{name}: an array has dtype {each.dtype}; expected numbers.")
        elif each is not None and 0 in each.shape:
            raise ConvertError(f"{name}: an array has shape {each.shape}, so that there is nothing to run.")
    return arrays


def _of_mxnet(value: Any) -> Any:
    """Return an array of numpy as MXNet's: floats as float32, integers as they are; anything else as it is.

    It is an array of ``mx.np`` where nets work on these: after ``npx.set_np()``.
    """
    if not isinstance(value, np.ndarray):
        return value
    make = mx.np.array if mx.util.is_np_array() else mx.nd.array
    return make(value, dtype=value.dtype if value.dtype.kind in "iub" else dtypes.FLOAT32)


def _on(value: Any, ctx: mx.Context) -> Any:
    """Return an array on a context."""
    # That of mx.np has an as_in_context too, which warns that it is deprecated.
    return value.as_in_ctx(ctx) if isinstance(value, mx.np.ndarray) else value.as_in_context(ctx)


# ---------------------------------------------------------------------- symbols


def inputs_of(symbol: Any, params: Collection[str], order: Sequence[str] = ()) -> Dict[str, str]:
    """Return the dtypes that a symbol's inputs declare, float32 without, by name, labels among them.

    They are in the ``order`` given, that of a Module's data and labels, and else as MXNet lists them.
    """
    inputs = order or [name for name in symbol.list_inputs() if name not in params]
    attributes = symbol.attr_dict()
    flags = {name: attributes.get(name, {}).get("__dtype__", "") for name in inputs}
    return {name: dtypes.from_flag(flag) or dtypes.FLOAT32 for name, flag in flags.items()}


def fill_inputs(model: ConvertedModel, batch: Mapping[str, Any], labels: bool = False) -> Dict[str, Any]:
    """Return the values of all inputs by name: parameters, a batch, and zeros for labels unless they are needed."""
    sym, given = model.symbol, {**model.arg_params, **model.aux_params, **batch}
    sizes = require_fit(sym, {name: array.shape for name, array in given.items()}, list(batch))
    missing = {name: size for name, size in zip(sym.list_arguments(), sizes) if name not in given}
    optional = label_names(sym) if missing else ()
    for name, size in missing.items():
        known = bool(size) and 0 not in size
        if labels or name not in optional or not known:
            shape = f", of shape {tuple(size)}" if known else ""
            raise ConvertError(f"batches: a batch lacks the input '{name}'{shape}; give it, also if it is a label.")
    return {**given, **{name: mx.nd.zeros(size) for name, size in missing.items()}}


# ---------------------------------------------------------------------- batches that do not fit

# SHAPE_ASSIGN_CHECK in src/operator/operator_common.h at tag 1.9.1
_SHAPES_DIFFER = re.compile(r"Provided = [\[(](.*?)[\])], inferred shape=[\[(](.*?)[\])]")
_MISCALLED = re.compile(r"forward\(\) (missing|takes|got multiple values)")


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
    with blaming_the_batch(batch):
        # Of shapes that do not fit MXNet names one; of the batch by itself it infers all.
        needed = inferred(batch)[1]
        unfit = [name for name, shape in known.items() if needed.get(name, shape) != shape]
        if unfit:
            texts = [f" of shape {known[name]} would have to be {needed[name]}" for name in unfit]
            raise ConvertError(
                f"batches: {_misfit(batch)}, for which {listed(unfit, texts)}: give batches of another shape, or the "
                f"parameters of this network."
            )
        return inferred(known)[0]


def _misfit(batch: Shapes) -> str:
    return " and ".join(f"'{name}' has shape {shape}" for name, shape in batch.items())


@contextlib.contextmanager
def blaming_the_batch(
    batch: Shapes, params: Shapes = MappingProxyType({}), types: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """Make an error of MXNet within the block one that names the shapes of a batch, or the dtypes that it speaks of.

    Args:
        batch: The shapes of the batch's arrays by name.
        params: Those of the network's parameters, of which the error may speak.
        types: The dtypes of the batch's arrays by name.
    """
    try:
        yield
    except (mx.MXNetError, InferenceError) as e:
        reason, of_mxnet = (mxnet_reason(e), e) if isinstance(e, mx.MXNetError) else (str(e), e.__cause__)
        unfit = _blamed(str(of_mxnet), types)
        if unfit:
            said = " and ".join(f"'{name}' has dtype {types[name]}" for name in unfit)
            each = "it" if len(unfit) == 1 else "them"
            raise ConvertError(f"batches: {said}; give {each} as float32: {reason}") from e
        raise ConvertError(f"batches: {_misfit(batch)}: {_of_parameter(str(of_mxnet), params) or reason}") from e


def _blamed(reason: str, types: Mapping[str, str]) -> List[str]:
    """Return the inputs that are not in float32 and whose dtype MXNet names; an error of shapes names none."""
    words = set(re.findall(r"\w+", reason))
    return [name for name, dtype in types.items() if dtype != dtypes.FLOAT32 and dtype in words]


def _of_parameter(reason: str, params: Shapes) -> str:
    """Return which parameter the shapes do not fit; '' if that is not known."""
    match = _SHAPES_DIFFER.search(reason)
    shapes = [tuple(map(int, re.findall(r"-?\d+", text))) for text in (match.groups() if match else ())]
    named = [name for name, shape in params.items() if shapes and shape == shapes[0]]
    named = [name for name in named if (name.rpartition("_")[0] or name) in reason] or named  # of the node named
    if len(named) != 1:
        return ""
    return f"parameter '{named[0]}' of shape {shapes[0]} would have to be {shapes[1]}."


# ---------------------------------------------------------------------- Gluon


def call_net(net: gluon.Block, inputs: Sequence[Any], without_loss: bool = False) -> Any:
    """Return what a net gives for a batch; ConvertError if that does not fit it.

    ``without_loss`` says that a label, of which a batch's last array may be meant as one, is read only with ``loss=``.
    """
    arrays = [each for each in leaves(inputs) if each is not None]
    names = ["data"] if len(arrays) == 1 else [f"data{number}" for number in range(len(arrays))]
    params = {name: param.shape for name, param in net.collect_params().items()}
    shapes = {name: array.shape for name, array in zip(names, arrays)}
    types = {name: dtypes.canonical(array.dtype) for name, array in zip(names, arrays)}
    with blaming_the_batch(shapes, params, types):
        try:
            return net(*inputs)
        except (TypeError, ValueError, ConvertError) as e:  # of a call with too many arrays, or a reshape
            reason = _miscall(e) if isinstance(e, MxmpError) else e
            if reason is None:
                raise
            given = ", ".join(f"'{name}' of shape {shape}" for name, shape in shapes.items())
            several = isinstance(reason, TypeError) and len(arrays) > 1
            hint = " Arrays of a tuple or list are one batch; several are a list of tuples." if several else ""
            label = " A label is read only with loss=." if several and without_loss else ""
            raise ConvertError(
                f"batches: block '{net.name}' cannot be called with {given}: {str(reason).rstrip('.')}.{hint}{label}"
            ) from e


def _miscall(error: MxmpError) -> Optional[TypeError]:
    """Return what Python says of a call with too many or too few arrays, by which a block could not be traced."""
    cause = error.__cause__
    return cause if isinstance(cause, TypeError) and _MISCALLED.search(str(cause)) else None
