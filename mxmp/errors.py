"""The errors that mxmp raises, its warning, and texts for messages. Each error is also the builtin that it refines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "CheckpointError",
    "ConvertError",
    "DependencyError",
    "DtypeError",
    "GraphError",
    "InferenceError",
    "LaunchError",
    "LossScaleError",
    "MxmpError",
    "NoBackwardError",
    "NonFiniteLossError",
    "ParamsError",
    "PassError",
    "PolicyError",
    "RuleError",
    "SlowPrecisionWarning",
    "StaleGradientError",
    "StateError",
    "TrainerError",
    "TuneError",
    "UnscaledLossError",
    "mxnet_reason",
]

# dmlc's logger writes the time and the line of its source before a message: "[12:34:56] ../src/c_api.cc:78: ".
_STAMP = re.compile(r"\[\d\d:\d\d:\d\d\] \S+?:\d+: ")


def __dir__() -> list[str]:
    return __all__


def mxnet_reason(error: Exception) -> str:
    """Return the text of an MXNet error in one line, without stack, clock and source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    start = max((i for i, line in enumerate(lines) if "MXNetError: " in line), default=max(len(lines) - 1, 0))
    text = " ".join(lines[start:]).rpartition("MXNetError: ")[2]
    text = text.partition(", Possible Arguments:")[0]  # behind it is the documentation of each argument
    return _STAMP.sub("", text) or type(error).__name__


def visible(text: str) -> str:
    """Return a text with control characters as Python writes them, so that a name cannot break or colour a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def listed(names: Sequence[str], notes: Sequence[str] = (), most: int = 3) -> str:
    """Return the first names in quotes, each with its note, and how many more there are."""
    noted = [f"'{visible(name)}'{note}" for name, note in zip(names, notes or [""] * len(names))]
    return ", ".join(noted[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def did_you_mean(name: str, known: Iterable[str], in_order: bool = False) -> str:
    """Return '; the nearest are ...' for an unknown name; if no known name is near, the first of them.

    They are sorted, unless ``in_order`` is set.
    """
    import difflib

    names = list(dict.fromkeys(known)) if in_order else sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    if near:
        return f"; the nearest are {', '.join(near)}"
    return f"; expected one of {', '.join(names[:10])}" if names else ""


def check_fields(what: str, data: object, fields: Iterable[str], error: type[MxmpError]) -> None:
    """Raise an error unless a saved state is a dict with exactly these fields; ``what`` names the state."""
    if not isinstance(data, Mapping):
        raise error(f"{what} is {data!r}; expected a dict.")
    expected = set(fields)
    if set(data) != expected:
        raise error(
            f"{what} lacks {sorted(expected - set(data))} and has unknown fields "
            f"{sorted(map(str, set(data) - expected))}."
        )


class MxmpError(Exception):
    """Root of all errors raised by mxmp."""


class DependencyError(MxmpError, ImportError):
    """A package that mxmp needs is missing, damaged, or has the wrong version."""


class DtypeError(MxmpError, TypeError):
    """A dtype name is unknown, or a dtype cannot be used where it was given."""


class PolicyError(MxmpError, ValueError):
    """A precision policy does not parse, contradicts itself or matches nothing."""


class RuleError(MxmpError, ValueError):
    """The table of operator rules contradicts itself."""


class GraphError(MxmpError, ValueError):
    """A graph is malformed; the message names the node."""


class PassError(MxmpError, RuntimeError):
    """A pass failed; the message names the pass and the node."""


class ConvertError(MxmpError, RuntimeError):
    """A network cannot be converted; the message names the block or node."""


class InferenceError(ConvertError):
    """MXNet cannot infer the dtypes or shapes of a network as it was given."""


class ParamsError(InferenceError):
    """The parameters given are not those of the network; the message names them."""


class CheckpointError(MxmpError, OSError):
    """A checkpoint's file is missing, damaged, or cannot be written; the message names it."""


class LossScaleError(MxmpError, ValueError):
    """A loss scale is invalid, or it collapsed to its floor."""


class NonFiniteLossError(MxmpError, FloatingPointError):
    """The loss itself is NaN or inf, which no loss scale can mend."""


class TrainerError(MxmpError, RuntimeError):
    """The trainer's protocol was not followed, or its arguments contradict each other."""


class StaleGradientError(TrainerError, UserWarning):
    """A gradient is older than the last step; MXNet's own trainer raises UserWarning for it."""


class NoBackwardError(TrainerError):
    """No backward was called on a loss that was scaled."""


class UnscaledLossError(TrainerError):
    """Backward was called on a loss that was not scaled, and may have written gradients."""


class StateError(MxmpError, ValueError):
    """A saved state does not fit its trainer, or the file is damaged."""


class LaunchError(MxmpError, RuntimeError):
    """The processes of a distributed job cannot be started."""


class TuneError(MxmpError, RuntimeError):
    """A network cannot be timed or searched as it was asked."""


class SlowPrecisionWarning(UserWarning):
    """A network was converted to a precision that is slower than float32 on this machine."""


def a_type_of(value: object) -> str:
    """Return the name of a value's type with its article, for messages: 'an int', 'a str', 'an NDArray'."""
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeioAEIO" or name.startswith("NDArray") else f"a {name}"
