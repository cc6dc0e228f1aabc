"""Drops casts that repeat another or change nothing.

Only casts that mxmp inserted are dropped; casts of the network's own are absorbed: what an
inserted cast would give, an equal cast that the network has already gives as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, Optional, Set, Tuple

from .. import dtypes
from ..graph import Entry, Graph, GraphBuilder, Node
from .base import Pass
from .facts import CAST_OPS
from .insert_casts import ABSORBED_ATTR, CAST_MARK, MARK_ATTR

_WIDENING = {(dtypes.FLOAT16, dtypes.FLOAT32), (dtypes.BFLOAT16, dtypes.FLOAT32)}


@dataclass(frozen=True)
class FoldCasts(Pass):
    """Rewires the readers of casts that are redundant.

    A cast is redundant if an earlier cast of the same tensor gives the same dtype, or if it
    takes back an exact widening: float16 to float32 to float16 is the identity, while float32
    to float16 to float32 is a rounding and stays.
    """

    name: ClassVar[str] = "fold-casts"

    def run(self, graph: Graph) -> Graph:
        """Return the graph without redundant casts."""
        return _Folder(graph).run()


class _Folder:
    """One forward sweep over the graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = GraphBuilder(graph)
        self.known: Dict[Tuple[Entry, str], Entry] = {}  # (what is cast, how) -> the cast
        self.own = _own_casts(graph)
        self.emitted: Set[int] = set()
        self.absorbed: Set[Entry] = set()  # old entries of inserted casts that gave way to the network's own

    def run(self) -> Graph:
        for position, node in enumerate(self.graph.nodes):
            if node.get(MARK_ATTR) == CAST_MARK:
                own = self.own.get((node.inputs[0], _conversion(node) or ""))
                if own is not None:
                    self._emit(own)  # an equal cast of the network's own comes later: let it come now
                same = self._equal(node, (self.builder.mapped(node.inputs[0]),))
                if same is not None:
                    self.builder.redirect(Entry(position), same)
                    if self.builder.nodes[same.node].get(MARK_ATTR) is None and own is not None:
                        self.absorbed.add(Entry(position))
                    continue
            self._emit(position)
        return self.builder.finish(self.builder.mapped(head) for head in self.graph.heads)

    def _emit(self, position: int) -> None:
        if position in self.emitted:
            return
        self.emitted.add(position)
        node = self.graph.nodes[position]
        inputs = tuple(self.builder.mapped(entry) for entry in node.inputs)
        ports = [str(port) for port, entry in enumerate(node.inputs) if entry in self.absorbed]
        if ports:
            node = node.with_attrs({ABSORBED_ATTR: ",".join(ports)})  # for EraseCasts
        bodies = tuple(_Folder(body).run() for body in node.subgraphs)
        new = self.builder.copy(position, node.rewired(inputs, bodies))
        how = _conversion(node)
        if how is not None:
            self.known.setdefault((inputs[0], how), Entry(new))

    def _equal(self, node: Node, inputs: Tuple[Entry, ...]) -> Optional[Entry]:
        """Return an entry of the new graph that holds what a cast would give."""
        dtype, how = _cast_dtype(node), _conversion(node)
        if dtype is None or how is None:
            return None
        repeated = self.known.get((inputs[0], how))
        if repeated is not None:
            return repeated
        source = self.builder.nodes[inputs[0].node]
        if _cast_dtype(source) is None:
            return None
        before = self._dtype(source.inputs[0])
        if before == dtype and (before, _cast_dtype(source)) in _WIDENING:
            return source.inputs[0]
        return None

    def _dtype(self, entry: Entry) -> Optional[str]:
        """Return the dtype of an entry of the new graph where a cast or a variable declares it."""
        node = self.builder.nodes[entry.node]
        if node.is_variable:
            return dtypes.from_flag(node.get("__dtype__", "") or "")
        return _cast_dtype(node)


def _own_casts(graph: Graph) -> Dict[Tuple[Entry, str], int]:
    """Return the positions of the network's own casts by (what is cast, how)."""
    found: Dict[Tuple[Entry, str], int] = {}
    for position, node in enumerate(graph.nodes):
        how = _conversion(node)
        if how is not None and node.get(MARK_ATTR) is None and not node.control_deps:
            found.setdefault((node.inputs[0], how), position)
    return found


def _cast_dtype(node: Node) -> Optional[str]:
    """Return what a cast casts to, None for any other node."""
    return node.get("dtype") if node.op in CAST_OPS else None


def _conversion(node: Node) -> Optional[str]:
    """Return what tells conversions with different results apart.

    ``Cast`` truncates to bfloat16 where ``amp_cast`` rounds; to other dtypes they agree.
    """
    dtype = _cast_dtype(node)
    return f"{node.op}:{dtype}" if dtype == dtypes.BFLOAT16 else dtype
