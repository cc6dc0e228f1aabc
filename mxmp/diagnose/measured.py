"""The calls of what is measured, and what is wrong with a batch, a net or a loss in them, in words."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Dict, Iterator, List, Mapping, Sequence

import mxnet as mx
from mxnet import gluon

from ..errors import ConvertError, mxnet_reason
from ..probe.largest_values import LargestValues
from .magnitudes import Magnitudes

_LOG = logging.getLogger(__name__)
_NAMED = 3  # tensors that a warning names


def call_net(net: gluon.Block, inputs: Sequence[Any]) -> Any:
    """Return what a net gives for a batch; ConvertError if the batch does not fit the net."""
    with _blamed(f"loader: block '{net.name}' cannot be called with {_shapes(_flat(inputs))}"):
        return net(*inputs)


def losses_of(loss: Any, output: Any, label: Any) -> List[Any]:
    """Return the arrays that a loss gives for a net's output and a label; ConvertError if it gives none, or fails."""
    given = "no label" if label is None else f"a label of {_shapes(_flat(label))}"
    with _blamed(f"loss: it cannot be called with an output of {_shapes(_flat(output))} and {given}"):
        found = loss(output, label)
    several = list(found) if isinstance(found, (list, tuple)) else [found]
    if not several or not all(isinstance(each, mx.nd.NDArray) for each in several):
        kinds = ", ".join(type(each).__name__ for each in several) or "nothing"
        raise ConvertError(
            f"loss: it gave {kinds}; expected the loss of the batch, an NDArray of any shape, or a list."
        )
    return several


def warn_of_nans(runs: Sequence[LargestValues]) -> None:
    """Warn of NaN in inputs, or that networks have made; what comes first is where it begins."""
    found: Dict[str, int] = {}
    for run in runs:
        found.update(run.nans)
    _warn("measure_ranges: NaN in", found, "ranges are those of the other elements, 0 where there are none")


def warn_of_nonfinite(counted: Mapping[str, Magnitudes]) -> None:
    """Warn of gradients that are inf or NaN."""
    found = {name: each.nonfinite for name, each in counted.items() if each.nonfinite}
    _warn("measure_gradients: inf or NaN in the gradients of", found, "all others are counted")


def _warn(what: str, found: Mapping[str, int], otherwise: str) -> None:
    if found:
        named = ", ".join(f"'{name}' ({count} elements)" for name, count in list(found.items())[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        text = "%s %s%s, in float32; %s. diagnose.find_nonfinite says where it comes from."
        _LOG.warning(text, what, named, more, otherwise)


@contextlib.contextmanager
def _blamed(what: str) -> Iterator[None]:
    """Make an error of MXNet one that says what was called, and how."""
    try:
        yield
    except mx.MXNetError as e:
        raise ConvertError(f"{what}: {mxnet_reason(e)}") from e


def _shapes(arrays: Any) -> str:
    """Return the shapes and dtypes of arrays in words."""
    return ", ".join(f"shape {each.shape} ({each.dtype.__name__})" for each in arrays) or "no array"


def _flat(value: Any) -> Iterator[Any]:
    """Yield arrays, perhaps nested in lists and tuples."""
    if isinstance(value, mx.nd.NDArray):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _flat(each)
