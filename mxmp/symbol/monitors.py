"""Monitors of converted networks: they see the network's own names, and float32 values."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import mxnet as mx
from mxnet.base import NDArrayHandle

from .. import dtypes
from ..mxnet_private import executor_symbol
from ..passes import EraseCasts
from ..passes.emulate import emulated_entries
from ..passes.facts import Named
from ..report.counts import positions
from .inference import entry_names, to_graph
from .rewrite import Converted, rounds_natively

Callback = Callable[..., None]


class _Report(NamedTuple):
    """An output that a monitor is shown, as the network knows it."""

    entry: Tuple[int, int]
    label: str  # MXNet's name for it in the network; empty where another node rounds what its operator gave
    op: str
    is_value: bool  # not if another node rounds it, whose value counts


class NetworkNames:
    """Finds what the tensors of a running graph are called in the network that it was converted from.

    An operator reports its outputs as ``<node>_output``, or by what else it calls them, and for all
    that is rounded behind it the rounded value stands: it takes the label of the last report of
    its operator. So there is one of these for each executor. It is made of the converted graph, a loss
    scale included, and the symbol that runs, on a CPU with float16 emulated.
    """

    def __init__(self, converted: Converted, running: Any, on_cpu: bool) -> None:
        graph, facts = converted.graph, converted.facts
        before = EraseCasts()(graph).graph
        where = positions(before, graph)
        places = emulated_entries(graph, facts, native=rounds_natively(facts)) if on_cpu else {}
        strings = _strings(running)
        read = {entry.node for node in before.nodes for entry in node.inputs} | {head.node for head in before.heads}
        self._variables = {before.nodes[i].name for i in read if before.nodes[i].is_variable}  # no loss scale
        self._reports: Dict[str, _Report] = {}
        self._labels: Dict[Tuple[int, int], str] = {}
        self._operators: Dict[str, Tuple[str, str]] = {}  # by the running node's name
        for position, node in enumerate(before.nodes):
            for index in range(0 if node.is_variable or position not in where else node.num_outputs):
                entry, key = (position, index), (where[position], index)
                same = (graph.nodes[key[0]].name, index)
                computed, rounded = places.get(key, (same, same))
                self._operators[computed[0]] = node.name, node.op
                for text in strings.get(rounded, ()):
                    self._reports.setdefault(text, _Report(entry, "", node.op, True))
                for text in strings.get(computed, ()):
                    self._labels[entry] = node.name + text[len(computed[0]) :]
                    self._reports[text] = _Report(entry, self._labels[entry], node.op, rounded == computed)
        self._all = {node.name for node in to_graph(running).nodes}

    def find(self, text: str) -> Optional[Tuple[str, Optional[str]]]:
        """Return the label of what is reported under a name, and its operator; None for what mxmp put in."""
        if text in self._reports:
            entry, label, op, is_value = self._reports[text]
            self._labels[entry] = label or self._labels[entry]
            return (self._labels[entry], op) if is_value else None
        return (text, None) if text in self._variables else self._find_part(text)

    def _find_part(self, text: str) -> Optional[Tuple[str, Optional[str]]]:
        """Return the label of an input or a gradient, which MXNet names after its node."""
        for end in (len(text), *(i for i in range(len(text) - 1, 0, -1) if text[i] == "_")):
            if text[:end] in self._operators:
                name, op = self._operators[text[:end]]
                return name + text[end:], op
            if text[:end] in self._all:
                return None
        return text, None  # an operator that MXNet made itself

    def wrap(self, callback: Callback) -> Callback:
        """Return a monitor callback that calls another with the network's names, and float32 values.

        Both take the name, for a cached operator that of the operator, and the handle of an array
        that they own.
        """

        def call(name: bytes, *rest: Any) -> None:
            array = mx.nd.NDArray(ctypes.cast(rest[-1], NDArrayHandle), writable=False)  # which frees what it owns
            report = self.find(name.decode())
            if report is not None:
                label, op = report
                result = _widened(array)
                handle, result.handle = result.handle, NDArrayHandle()  # who is called frees it
                ops = rest[:-1] if op is None else [op.encode() for _ in rest[:-1]]
                callback(label.encode(), *ops, handle)

        return call

    def is_own(self, variable: str) -> bool:
        """Return whether a variable is one of the network's."""
        return variable in self._variables


class WatchedExecutor:
    """An executor as ``mx.mon.Monitor`` takes it, with the names of the network and float32 values."""

    def __init__(self, executor: Any, names: NetworkNames) -> None:
        self._executor, self._names = executor, names
        executor_symbol.set(self, self)  # whom the Monitor asks for names alone

    def __getattr__(self, name: str) -> Any:
        """Return what is the executor's own."""
        return getattr(self._executor, name)

    def set_monitor_callback(self, callback: Callback, monitor_all: bool = False) -> None:
        """Install a callback, as ``Executor.set_monitor_callback``."""
        self._executor.set_monitor_callback(self._names.wrap(callback), monitor_all)

    def list_arguments(self) -> List[str]:
        """Return the names of the network's arguments."""
        return list(filter(self._names.is_own, executor_symbol(self._executor).list_arguments()))

    def list_auxiliary_states(self) -> List[str]:
        """Return the names of its auxiliary states."""
        return list(filter(self._names.is_own, executor_symbol(self._executor).list_auxiliary_states()))

    @property
    def arg_arrays(self) -> List[Any]:
        """The network's arguments in float32."""
        return [_widened(self._executor.arg_dict[name]) for name in self.list_arguments()]

    @property
    def aux_arrays(self) -> List[Any]:
        """Its auxiliary states."""
        return [_widened(self._executor.aux_dict[name]) for name in self.list_auxiliary_states()]


def _strings(symbol: Any) -> Dict[Named, Set[str]]:
    """Return what executors and cached operators may call the outputs of a symbol's nodes."""
    graph, internals = to_graph(symbol), symbol.get_internals()
    found: Dict[Named, Set[str]] = {}
    for (position, index), name in entry_names(internals, graph).items():
        node = graph.nodes[position]
        found.setdefault((node.name, index), set()).update((name, f"{node.name}_{index}"))
    return found


def _widened(array: Any) -> Any:
    low = dtypes.canonical(array.dtype) in (*dtypes.LOW_PRECISION, "float64")
    return mx.nd.amp_cast(array, dtype=dtypes.FLOAT32) if low else array
