"""Removal of casts that repeat another or change nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, Dict, Optional, Set, Tuple

from .. import dtypes
from ..graph import Entry, Graph, GraphBuilder, Node
from .attributes import ABSORBED_ATTR, CAST_MARK, MARK_ATTR
from .base import Pass
from .facts import CAST_OPS, declared_dtype


@dataclass(frozen=True)
class FoldCasts(Pass):
    """Rewires the readers of casts that are redundant, of those that mxmp inserted.

    A cast is redundant if an earlier cast of the same tensor, maybe the network's own, gives the same dtype, or if it
    takes back an exact widening: float16 to float32 to float16 is the identity; float32 to float16 to float32 is a
    rounding and stays.
    """

    name: ClassVar[str] = "fold-casts"

    def run(self, graph: Graph) -> Graph:
        """Return the graph without redundant casts."""
        return _Folder(graph).run() if _may_fold(graph) else graph


def _may_fold(graph: Graph) -> bool:
    """Return whether a cast in a graph or its bodies repeats another or reads another."""
    seen = set()
    for node in graph.nodes:
        how = _conversion(node)
        if how is not None:
            source = node.inputs[0]
            if (source, how) in seen or graph.nodes[source.node].op in CAST_OPS:
                return True
            seen.add((source, how))
        if node.subgraphs and any(map(_may_fold, node.subgraphs)):
            return True
    return False


class _Folder:
    """One forward sweep over the graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = GraphBuilder(graph)
        self.known: Dict[Tuple[Entry, str], Entry] = {}  # (what is cast, how) -> the cast
        self.own = _own_casts(graph)
        self.emitted: Set[int] = set()
        # Old entries of inserted casts that gave way: () to an equal cast of the network's own, or the
        # operator and name of its widening that the cast took back.
        self.absorbed: Dict[Entry, Tuple[str, ...]] = {}
        self.heads = {head.node for head in graph.heads}

    def run(self) -> Graph:
        for position, node in enumerate(self.graph.nodes):
            # A cast at an output stays: only nodes can say what they would have read.
            if node.get(MARK_ATTR) != CAST_MARK or position in self.heads or not self._fold(position, node):
                self._emit(position)
        return self.builder.finish()

    def _fold(self, position: int, node: Node) -> bool:
        """Replace a cast by another node that gives the same, and return whether there is one."""
        how, source = _conversion(node) or "", node.inputs[0]
        own = self.own.get((source, how))
        if own is not None:
            self._emit(own)  # it may come later: let it come now
        same = self.known.get((self.builder.mapped(source), how))
        if same is None:
            same = self._narrower(node, self.builder.nodes[self.builder.mapped(source).node])
            if same is None:
                return False
            widening = self.graph.nodes[source.node]
            self.absorbed[Entry(position)] = (widening.op, widening.name)
        elif own is not None:
            self.absorbed[Entry(position)] = ()
        self.builder.redirect(Entry(position), same)
        return True

    def _narrower(self, node: Node, source: Node) -> Optional[Entry]:
        """Return the low precision entry that a cast's source widens, if the cast only undoes that."""
        if source.op not in CAST_OPS or source.attrs != (("dtype", dtypes.FLOAT32),):
            return None
        before = declared_dtype(self.builder.nodes[source.inputs[0].node])
        return source.inputs[0] if before == node.get("dtype") and before in dtypes.LOW_PRECISION else None

    def _emit(self, position: int) -> None:
        if position in self.emitted:
            return
        self.emitted.add(position)
        node = self.graph.nodes[position]
        inputs = self.builder.inputs(node)
        absorbed = [[port, *self.absorbed[e]] for port, e in enumerate(node.inputs) if e in self.absorbed]
        if absorbed:
            node = node.with_attrs({ABSORBED_ATTR: json.dumps(absorbed)})  # for EraseCasts
        new = self.builder.copy(position, node.rewired(inputs, tuple(_Folder(body).run() for body in node.subgraphs)))
        how = _conversion(node)
        if how is not None:
            self.known.setdefault((inputs[0], how), Entry(new))


def _own_casts(graph: Graph) -> Dict[Tuple[Entry, str], int]:
    """Return the positions of the network's own casts by (what is cast, how)."""
    found: Dict[Tuple[Entry, str], int] = {}
    for position, node in enumerate(graph.nodes):
        how = _conversion(node)
        if how is not None and node.get(MARK_ATTR) is None and not node.control_deps:
            found.setdefault((node.inputs[0], how), position)
    return found


def _conversion(node: Node) -> Optional[str]:
    """Return a key that is equal for casts with equal results, None for any other node.

    ``Cast`` truncates to bfloat16 where ``amp_cast`` rounds; to other dtypes both give the same.
    """
    dtype = node.get("dtype") if node.op in CAST_OPS else None
    return f"{node.op}:{dtype}" if dtype == dtypes.BFLOAT16 else dtype
