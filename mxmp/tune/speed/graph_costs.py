"""The estimated costs of one graph: of its operators in each precision, and of its casts."""

from __future__ import annotations

from dataclasses import replace
from typing import AbstractSet, Dict, FrozenSet, List, Mapping, Tuple

from ... import dtypes
from ...graph import Graph, Key
from ...passes.decide import FREE
from ...passes.facts import Facts
from ...passes.place import Costs, Tensor, find_tensors, place
from ...passes.plan import Plan
from .choices import Choices
from .roofline import TRAINING_PASSES, Seconds, Speeds, cast_seconds, node_seconds

Part = Tuple[Graph, Facts, Plan]
"""A graph of a network with its untuned plan."""

_UNITS = 2**30  # that all costs together are, as whole numbers


class GraphCosts:
    """The costs of one graph, before they are corrected.

    Args:
        part: The graph.
        choices: What can be chosen for.
        speeds: The machine's.
        training: Whether it trains.

    Attributes:
        group_of: The group of each node that can be chosen for, by position.
        seconds: Of each node, in float32 and in low precision.
        cast: The seconds of each cast that may be, by the entry that is cast.
    """

    def __init__(self, part: Part, choices: Choices, speeds: Speeds, training: bool) -> None:
        self.graph, self._facts, plan = part
        numbers = {name: number for number, group in enumerate(choices.groups) for name in group.names}
        found = ((i, numbers.get(node.name), node) for i, node in enumerate(self.graph.nodes) if not node.is_variable)
        self.group_of: Dict[int, int] = {
            i: number for i, number, node in found if number is not None and choices.groups[number].op == node.op
        }
        self._nodes: Dict[int, List[int]] = {}
        for position, number in self.group_of.items():
            self._nodes.setdefault(number, []).append(position)
        self._verdicts = [
            replace(verdict, label=FREE) if i in self.group_of else verdict for i, verdict in enumerate(plan.verdicts)
        ]
        self._params = plan.low_params
        self._output_low = choices.policy.output_dtype != dtypes.FLOAT32
        passes = TRAINING_PASSES if training else 1
        self.seconds = [
            Seconds(0.0, 0.0) if node.is_variable else node_seconds(self.graph, i, self._facts, verdict, speeds, passes)
            for i, (node, verdict) in enumerate(zip(self.graph.nodes, self._verdicts))
        ]
        tensors, _ = find_tensors(
            self.graph, self._verdicts, self._facts, output_low=self._output_low, free_params=self._params
        )
        self.cast: Dict[Key, float] = {each.entry.key: self._cast_seconds(each, speeds, training) for each in tensors}
        self._touching: Dict[int, List[Tensor]] = {}
        for tensor in tensors:
            for side in {tensor.producer, *tensor.readers}:
                self._touching.setdefault(side, []).append(tensor)

    def nodes_of(self, groups: AbstractSet[int]) -> FrozenSet[int]:
        """Return the nodes of some groups."""
        return frozenset().union(*(self._nodes.get(number, ()) for number in groups))

    def changed_casts(self, before: AbstractSet[int], after: AbstractSet[int]) -> float:
        """Return by how many seconds casts grow if some nodes change their precision."""
        found = self._tensors_beside(before ^ after)
        return sum(self.cast[key] * (each.is_cast(after) - each.is_cast(before)) for key, each in found.items())

    def possible_casts(self, nodes: AbstractSet[int]) -> float:
        """Return the seconds of all casts that can be beside some nodes."""
        return sum(self.cast[key] for key in self._tensors_beside(nodes))

    def cut(self, saving: Mapping[int, float], casts_factor: float) -> FrozenSet[int]:
        """Return the nodes that are cheapest in low precision: a minimum cut on what each node saves by it."""
        cast = {key: casts_factor * seconds for key, seconds in self.cast.items()}
        unit = (sum(map(abs, saving.values())) + sum(cast.values())) / _UNITS or 1.0
        costs = Costs(
            {position: round(seconds / unit) for position, seconds in saving.items()},
            {key: round(seconds / unit) for key, seconds in cast.items()},
        )
        found = place(
            self.graph,
            self._verdicts,
            self._facts,
            output_low=self._output_low,
            free_params=self._params,
            costs=costs,
        )
        return found.low

    def _tensors_beside(self, nodes: AbstractSet[int]) -> Dict[Key, Tensor]:
        return {each.entry.key: each for node in nodes for each in self._touching.get(node, ())}

    def _cast_seconds(self, tensor: Tensor, speeds: Speeds, training: bool) -> float:
        """Return the seconds of a cast, and of that of its gradient; for inference weights are cast once for all."""
        node = self.graph.nodes[tensor.entry.node]
        if not training and node.is_variable and node.name in self._facts.params:
            return 0.0
        return (2 if training else 1) * cast_seconds(tensor.size, speeds)
