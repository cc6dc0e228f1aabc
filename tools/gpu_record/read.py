"""A record as a list of calls, and its sections."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Union

from mxmp.errors import MxmpError

from .kernel_names import demangle


class RecordError(MxmpError, ValueError):
    """A record is damaged; the message names the file and the line."""


@dataclass(frozen=True)
class Call:
    """One call of a CUDA library's function, or a mark."""

    name: str  # the function, like cudaLaunchKernel or cudnnConvolutionForward; "mark" for a mark
    thread: int = 0  # number of the thread that called
    device: int = 0  # number of the GPU that was current
    operator: Optional[str] = None  # MXNet's operator, while its profiler runs
    kernel: Optional[str] = None  # the demangled kernel of a launch
    source: Optional[str] = None  # the CUDA source of a run-time compiled kernel, if the record holds it
    fields: Mapping[str, Any] = field(default_factory=dict)  # what else the record says, by name

    def __getitem__(self, key: str) -> Any:
        """Return a field, like ``call["bytes"]``."""
        return self.fields[key]


def read(path: Union[str, Path]) -> List[Call]:
    """Return the calls of a record in their order; a RecordError says which line is not one of a record's."""
    calls: List[Call] = []
    sources: Dict[int, str] = {}
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                calls.append(_call(json.loads(line), sources))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise RecordError(
                    f"{path}, line {number}: not a line of a record ({error}); is it complete, and of one process?"
                ) from error
    return calls


def sections(calls: Iterable[Call]) -> Dict[str, List[Call]]:
    """Return the calls after each mark; marks of the same name share a section, calls before the first are in none."""
    found: Dict[str, List[Call]] = {}
    current: Optional[List[Call]] = None
    for call in calls:
        if call.name == "mark":
            current = found.setdefault(call["name"], [])
        elif current is not None:
            current.append(call)
    return found


def _call(line: Dict[str, Any], sources: Dict[int, str]) -> Call:
    """Return the call of a line; keep the sources of compiled programs for the launches that follow."""
    name, kernel, source = line.pop("call"), line.pop("kernel", None), line.pop("source", None)
    if source is not None:
        sources[line["program"]] = source
    elif name == "cuLaunchKernel":
        source = sources.get(line["program"])
    kernel = None if kernel is None else demangle(kernel)
    return Call(name, line.pop("thread"), line.pop("device"), line.pop("operator", None), kernel, source, line)
