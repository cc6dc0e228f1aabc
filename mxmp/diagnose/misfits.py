"""Batches that do not fit a network: said in one sentence that names input, found and expected shape, or the dtype."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..errors import ConvertError, InferenceError, MxmpError, mxnet_reason

Shapes = Mapping[str, Tuple[int, ...]]

# SHAPE_ASSIGN_CHECK in src/operator/operator_common.h at tag 1.9.1
_SHAPES_DIFFER = re.compile(r"Provided = [\[(](.*?)[\])], inferred shape=[\[(](.*?)[\])]")
_MISCALLED = re.compile(r"forward\(\) (missing|takes|got multiple values)")


def require_fit(symbol: Any, shapes: Shapes, inputs: Sequence[str]) -> List[Any]:
    """Return the shapes of all arguments of a symbol, as far as MXNet infers them; ConvertError if they do not fit.

    ``shapes`` has those of parameters and of ``inputs``, which a batch has.
    """
    known = {name: shapes[name] for name in symbol.list_inputs() if name in shapes}

    def fits(tried: Shapes) -> bool:
        try:
            symbol.infer_shape_partial(**{**known, **tried})
        except mx.MXNetError:
            return False
        return True

    params = {name: shape for name, shape in known.items() if name not in inputs}
    with blaming_the_batch({name: known[name] for name in inputs}, params, fits, {}):
        return list(symbol.infer_shape_partial(**known)[0] or ())


@contextlib.contextmanager
def blaming_the_batch(
    inputs: Shapes, params: Shapes, fits: Callable[[Shapes], bool], types: Mapping[str, str]
) -> Iterator[None]:
    """Make an error of MXNet within the block one that names the shapes of a batch, or the dtypes that it speaks of.

    Args:
        inputs: The shapes of the batch's arrays by name.
        params: Those of the network's parameters.
        fits: Whether the network runs on inputs of other shapes.
        types: The dtypes of the batch's arrays by name.
    """
    try:
        yield
    except (mx.MXNetError, InferenceError) as e:
        reason = mxnet_reason(e) if isinstance(e, mx.MXNetError) else str(e)
        unfit = _blamed(reason, types)
        if unfit:
            said = " and ".join(f"'{name}' has dtype {types[name]}" for name in unfit)
            each = "it" if len(unfit) == 1 else "them"
            raise ConvertError(f"batches: {said}; give {each} as float32: {reason}") from e
        found = " and ".join(f"'{name}' has shape {shape}" for name, shape in inputs.items())
        expected = _expected(reason, inputs, fits)
        if expected is not None:
            found = f"'{expected[0]}' has shape {inputs[expected[0]]}, expected {expected[1]}"
        raise ConvertError(f"batches: {found}: {_of_parameter(reason, params) or reason}") from e


def _blamed(reason: str, types: Mapping[str, str]) -> List[str]:
    """Return the inputs that are not in float32 and whose dtype a reason names; one of shapes names none."""
    words = set(re.findall(r"\w+", reason))
    return [name for name, dtype in types.items() if dtype != dtypes.FLOAT32 and dtype in words]


def _expected(reason: str, inputs: Shapes, fits: Callable[[Shapes], bool]) -> Optional[Tuple[str, Tuple[int, ...]]]:
    """Return the input that is wrong in one size, and a shape with which the network runs; None if none was found."""
    differ = _differing(reason)
    if differ is None:
        return None
    for right, wrong in [pair for pair in zip(*differ) if pair[0] != pair[1]] if len({*map(len, differ)}) == 1 else ():
        for name, shape in inputs.items():
            for axis in (axis for axis, size in enumerate(shape) if axis and size == wrong):
                tried = (*shape[:axis], right, *shape[axis + 1 :])
                if fits({**inputs, name: tried}):
                    return name, tried
    return None


def _of_parameter(reason: str, params: Shapes) -> str:
    """Return which parameter the shapes do not fit; '' if that is not known."""
    differ = _differing(reason)
    named = [name for name, shape in params.items() if differ and shape == differ[0]]
    named = [name for name in named if _node_of(name) in reason] or named
    if differ is None or len(named) != 1:
        return ""
    return f"parameter '{named[0]}' has shape {differ[0]}, and the batch would need {differ[1]}."


def _node_of(name: str) -> str:
    return name.rpartition("_")[0] or name


def _differing(reason: str) -> Optional[Tuple[Tuple[int, ...], Tuple[int, ...]]]:
    """Return the shape that is given and the one that a batch needs, as MXNet says them."""
    match = _SHAPES_DIFFER.search(reason)
    if match is None:
        return None
    given, inferred = (tuple(map(int, re.findall(r"-?\d+", text))) for text in match.groups())
    return given, inferred


# ---------------------------------------------------------------------- Gluon


def call_net(net: gluon.Block, inputs: Sequence[Any], without_loss: bool = False) -> Any:
    """Return what a net gives for a batch; ConvertError if that does not fit it.

    ``without_loss`` says that a label, of which a batch's last array may be meant as one, is read only with ``loss=``.
    """
    arrays = list(_flat(inputs))
    names = ["data"] if len(arrays) == 1 else [f"data{number}" for number in range(len(arrays))]

    def fits(shapes: Shapes) -> bool:
        tried = (mx.nd.zeros(shapes[name], array.ctx, array.dtype) for name, array in zip(names, arrays))
        try:
            with autograd.pause():
                net(*_nested(inputs, tried))
        except (mx.MXNetError, InferenceError):
            return False
        return True

    params = {name: param.shape for name, param in net.collect_params().items()}
    shapes = {name: array.shape for name, array in zip(names, arrays)}
    types = {name: dtypes.canonical(array.dtype) for name, array in zip(names, arrays)}
    with blaming_the_batch(shapes, params, fits, types):
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


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _flat(each)
    elif value is not None:
        yield value


def _nested(like: Any, arrays: Iterator[Any]) -> Any:
    """Return arrays nested as others are."""
    if isinstance(like, (list, tuple)):
        items = [_nested(each, arrays) for each in like]
        return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
    return like if like is None else next(arrays)
