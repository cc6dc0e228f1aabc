"""A ledger as JSON: what it was, is and says, so that a run can go on with it and a report can draw it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple

import numpy as np

from ...dtypes import LOW_PRECISION
from ...errors import CheckpointError, StateError, check_fields
from .exponents import BIAS, NONFINITE, ZERO
from .layer import Layer
from .steps import Steps

if TYPE_CHECKING:
    from .ledger import Ledger

KIND, VERSION = "ledger", 2
_FIELDS = (
    *("kind", "version", "dtype", "every", "steps", "sampled", "skipped", "not_taken_last", "non_finite_losses"),
    *("dynamic_scale", "layers", "scale", "scales", "advice", "overrides"),
)
_LAYER_FIELDS = (
    *("name", "elements", "zero_share", "subnormal_share", "largest", "largest_unscaled", "skips", "skips_at"),
    *("nonfinite", "gradient_before_and_latest", "weight_before_and_latest", "lost_update_share", "lost_updates"),
    *("histogram", "counts"),
)
_NEW = {"not_taken_last": 0, "non_finite_losses": 0, "dynamic_scale": False, "overrides": ""}  # in version 2
_NEW_OF_A_LAYER = {"skips_at": {}, "gradient_before_and_latest": [0, 0], "weight_before_and_latest": [0, 0]}


class State(NamedTuple):
    """What a saved ledger goes on with; fields as of `Ledger`."""

    every: int
    dtype: str
    steps: int
    sampled: int
    ends: Steps
    layers: List[Layer]


def to_dict(ledger: Ledger, ends: Steps) -> Dict[str, Any]:
    """Return a ledger as plain data, with shares, histograms and advice for those who read it."""
    layers, advice, by_scale = ledger.layers, ledger.advice(), ends.by_scale.items()
    return {
        "kind": KIND,
        "version": VERSION,
        "dtype": ledger.dtype,
        "every": ledger.every,
        "steps": ledger.steps,
        "sampled": ledger.sampled,
        "skipped": ledger.skipped,
        "not_taken_last": ends.not_taken_last,
        "non_finite_losses": ends.non_finite_losses,
        "dynamic_scale": ends.is_dynamic,
        "layers": [_layer_dict(layer, ledger.dtype) for layer in layers],
        "scale": {"lowest": advice.lowest, "highest": advice.highest, "last": ends.last},
        "scales": {str(scale): {"taken": taken, "skipped": skipped} for scale, (taken, skipped) in by_scale},
        "advice": list(advice.sentences),
        "overrides": advice.overrides,
    }


def to_json(data: Mapping[str, Any]) -> str:
    """Return plain data as the text of a file."""
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def read(path: str) -> Any:
    """Return what a JSON file holds; CheckpointError if it cannot be read, StateError if it is no JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as e:
        raise CheckpointError(f"{path}: the ledger cannot be read: {e.strerror or e}") from e
    except ValueError as e:
        raise StateError(f"{path} is no ledger: {e}") from e


def state_of(data: Any, what: str) -> State:
    """Return the state in plain data, or raise a StateError that begins with ``what``.

    Of a ledger of version 1 it is not known at which scales a layer was first in skips, nor how much it grew.
    """
    if not isinstance(data, Mapping) or data.get("kind") != KIND:
        raise StateError(f"{what} is no ledger; expected what Ledger.save writes.")
    if data.get("version") not in (1, VERSION):
        raise StateError(f"{what} has version {data.get('version')!r}; this mxmp reads versions 1 and {VERSION}.")
    is_old = data["version"] == 1
    data = {**_NEW, **data} if is_old else data
    check_fields(what, data, _FIELDS, StateError)
    try:
        if data["dtype"] not in LOW_PRECISION:
            raise ValueError(f"dtype is {data['dtype']!r}")
        return State(
            every=_count(data["every"]) or 1,
            dtype=data["dtype"],
            steps=_count(data["steps"]),
            sampled=_count(data["sampled"]),
            ends=_ends(data),
            layers=[_layer({**_NEW_OF_A_LAYER, **each} if is_old else each, what) for each in data["layers"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise StateError(f"{what} is damaged: {e}.") from e


def _ends(data: Mapping[str, Any]) -> Steps:
    last = data["scale"]["last"]
    return Steps(
        by_scale={int(k): [_count(v["taken"]), _count(v["skipped"])] for k, v in data["scales"].items()},
        last=None if last is None else float(last),
        not_taken_last=_count(data["not_taken_last"]),
        non_finite_losses=_count(data["non_finite_losses"]),
        is_dynamic=bool(data["dynamic_scale"]),
    )


def _layer_dict(layer: Layer, dtype: str) -> Dict[str, Any]:
    return {
        "name": layer.name,
        "elements": layer.elements,
        **layer.shares(dtype),
        "largest": _number(layer.largest),
        "largest_unscaled": layer.largest_unscaled,
        "skips": layer.skips,
        "skips_at": {str(scale): count for scale, count in layer.skips_at.items()},
        "nonfinite": layer.nonfinite,
        "gradient_before_and_latest": [layer.grad_before, layer.grad],
        "weight_before_and_latest": [layer.weight_before, layer.weight],
        "lost_update_share": layer.lost_share,
        "lost_updates": [layer.lost, layer.moved],
        "histogram": {str(exponent): count for exponent, count in layer.histogram.items()},
        "counts": {str(scale): _sparse(each) for scale, each in sorted(layer.counts.items())},
    }


def _sparse(counts: Any) -> Dict[str, int]:
    """Return counts by exponent, 'zero' for zeros."""
    return {("zero" if column == ZERO else str(column - BIAS)): int(counts[column]) for column in counts.nonzero()[0]}


def _layer(data: Any, what: str) -> Layer:
    check_fields(f"{what}: a layer", data, _LAYER_FIELDS, StateError)
    lost, moved = data["lost_updates"]
    grad_before, grad = data["gradient_before_and_latest"]
    weight_before, weight = data["weight_before_and_latest"]
    return Layer(
        name=str(data["name"]),
        elements=_count(data["elements"]),
        counts={int(scale): _dense(each) for scale, each in data["counts"].items()},
        largest=math.inf if data["largest"] == "inf" else float(data["largest"]),
        largest_unscaled=float(data["largest_unscaled"]),
        skips_at={int(scale): _count(count) for scale, count in data["skips_at"].items()},
        nonfinite=_count(data["nonfinite"]),
        grad_before=float(grad_before),
        grad=float(grad),
        weight_before=float(weight_before),
        weight=float(weight),
        lost=_count(lost),
        moved=_count(moved),
    )


def _dense(sparse: Mapping[str, int]) -> Any:
    counts = np.zeros(NONFINITE, np.int64)
    for exponent, count in sparse.items():
        column = ZERO if exponent == "zero" else int(exponent) + BIAS
        if not ZERO <= column < NONFINITE:
            raise ValueError(f"the exponent {exponent}")
        counts[column] = _count(count)
    return counts


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _number(value: float) -> Any:
    return value if math.isfinite(value) else "inf"
