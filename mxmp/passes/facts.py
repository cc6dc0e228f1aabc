"""Inferred dtypes, shapes and output names of a graph, which its JSON does not have."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Mapping, Optional, Set, Tuple, TypeVar

from .. import dtypes
from ..graph import Entry, Graph, Key, Node

OutputRef = Tuple[str, int]
"""A node's name and the number of an output."""

Shape = Tuple[int, ...]

_Value = TypeVar("_Value")

CAST_OPS = ("Cast", "amp_cast")
"""Operators whose one purpose is another dtype."""


@dataclass(frozen=True)
class Facts:
    """The known dtypes, shapes and names of the entries of one graph.

    Attributes:
        dtypes: Dtypes of the entries. An entry that is missing keeps its dtype.
        shapes: Shapes of the entries, where they are known.
        output_names: Names as MXNet's ``list_outputs`` has them.
        params: Names of the variables that are parameters, whose storage a policy may choose.
        inputs: Names of the variables that are inputs of the network. Their values are not narrowed to save bytes.
        out_of_range: Names of the entries, parameters among them, with values beyond the range of the low precision
            dtype. The operators that give or read them stay in float32.
        bodies: Facts on the bodies of control flow nodes, by (node, number of the body).
    """

    dtypes: Mapping[Key, str]
    shapes: Mapping[Key, Shape] = field(default_factory=dict)
    output_names: Mapping[Key, str] = field(default_factory=dict)
    params: FrozenSet[str] = frozenset()
    inputs: FrozenSet[str] = frozenset()
    out_of_range: FrozenSet[str] = frozenset()
    bodies: Mapping[Key, "Facts"] = field(default_factory=dict)

    @classmethod
    def assume_float32(cls, graph: Graph) -> "Facts":
        """Return facts on a float32 network whose shapes are unknown: the dtypes that it declares, else float32."""
        keys = [(position, index) for position, node in enumerate(graph.nodes) for index in range(node.num_outputs)]
        return cls({key: declared_dtype(graph.nodes[key[0]]) or dtypes.FLOAT32 for key in keys})

    def dtype(self, entry: Entry) -> Optional[str]:
        """Return the dtype of an entry, None if unknown."""
        return self.dtypes.get(entry[:2])  # its key, as below; asked thousands of times

    def shape(self, entry: Entry) -> Optional[Shape]:
        """Return the shape of an entry, None if unknown or partly unknown."""
        shape = self.shapes.get(entry[:2])
        return shape if shape is not None and all(size > 0 for size in shape) else None

    def size(self, entry: Entry) -> Optional[int]:
        """Return the number of elements of an entry, None if unknown."""
        shape = self.shape(entry)
        return None if shape is None else math.prod(shape)

    def variable_dtypes(self, graph: Graph) -> Dict[str, str]:
        """Return the dtypes of a graph's variables by name, where they are known."""
        types = self.dtypes
        return {node.name: types[i, 0] for i, node in enumerate(graph.nodes) if node.is_variable and (i, 0) in types}

    def variable_shapes(self, graph: Graph) -> Dict[str, Shape]:
        """Return the shapes of a graph's variables by name, where they are known."""
        shapes = ((node.name, self.shape(Entry(i))) for i, node in enumerate(graph.nodes) if node.is_variable)
        return {name: shape for name, shape in shapes if shape is not None}

    def nodes_out_of_range(self, graph: Graph) -> Set[int]:
        """Return the nodes with an output that has values beyond the low precision dtype's range."""
        nodes = enumerate(graph.nodes if self.out_of_range else ())
        outputs = (Entry(i, index) for i, node in nodes for index in range(node.num_outputs))
        return {entry.node for entry in outputs if self.output_name(graph, entry) in self.out_of_range}

    def has(self, dtype: str) -> bool:
        """Return whether a graph has entries of a dtype, its bodies of control flow included."""
        return dtype in self.dtypes.values() or any(body.has(dtype) for body in self.bodies.values())

    def by_name(self, graph: Graph, dtype: str) -> Dict[OutputRef, Optional[Shape]]:
        """Return the entries of a dtype by name, with their shapes where these are known.

        Entries within bodies of control flow are among them, with shapes unknown. Names survive passes, which positions
        do not; the graph's are to be unique (`mxmp.graph.with_unique_names`).
        """
        named: Dict[OutputRef, Optional[Shape]] = {}
        for (position, number), body in self.bodies.items():
            named.update(dict.fromkeys(body.by_name(graph.nodes[position].subgraphs[number], dtype)))
        entries = (Entry(*key) for key, each in self.dtypes.items() if each == dtype)
        named.update(((graph.nodes[entry.node].name, entry.index), self.shape(entry)) for entry in entries)
        return named

    def output_name(self, graph: Graph, entry: Entry) -> str:
        """Return the name that MXNet's ``list_outputs`` gives to an entry."""
        return self.output_names.get(entry.key) or graph.entry_name(entry)


def declared_dtype(node: Node) -> Optional[str]:
    """Return the dtype that a variable or a cast declares, None for any other node."""
    if node.is_variable:
        return dtypes.from_flag(node.get("__dtype__") or "")
    return node.get("dtype") if node.op in CAST_OPS else None
