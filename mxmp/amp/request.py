"""Parse the arguments of contrib.amp's functions to a policy for each network."""

from __future__ import annotations

import glob
import itertools
from dataclasses import dataclass
from typing import Any, FrozenSet, Iterable, List, Optional, Tuple

from .. import dtypes
from ..errors import did_you_mean
from ..graph import Graph, Node
from ..passes import EraseCasts
from ..policy import Policy
from ..rules import ALLOW, RULES
from ..symbol import to_graph
from .operators import AmpError, canonical_op, low_precision

_ALLOWED = frozenset(rule.op for rule in RULES if rule.category == ALLOW)
_REPLACED = frozenset(rule.op for rule in RULES if rule.stand_ins)  # rules decide, by shapes, what stands in for them


@dataclass(frozen=True)
class Request:
    """Arguments that `init` and the conversions share, checked; `convert_symbol` explains them."""

    dtype: str
    target_ops: Optional[FrozenSet[str]]
    fp32_ops: FrozenSet[str]
    conditions: Tuple[Tuple[str, str, FrozenSet[str]], ...]
    excluded: FrozenSet[str]
    store: bool

    def base(self) -> Policy:
        """Return the policy without overrides for operators."""
        return Policy(
            param_dtype=self.dtype if self.store else dtypes.FLOAT32,
            compute_dtype=self.dtype,
            loss_scale="dynamic" if self.dtype == dtypes.FLOAT16 else None,
        )

    def policy(self, symbol: Any) -> Policy:
        """Return the policy for one network: with overrides for what it has, and none for what it lacks."""
        nodes = operators_of(symbol)
        dtype_of = {op: self._dtype_of(op) for op in {node.op for node in nodes}}
        ops = {op: dtype for op, dtype in dtype_of.items() if dtype}
        names = {node.name for node in nodes if node.name in self.excluded or self._meets_condition(node)}
        return self.base().replace(ops=ops, names={glob.escape(name): dtypes.FLOAT32 for name in names})

    def require_excluded(self, symbols: Iterable[Any]) -> None:
        """Raise an AmpError with the nearest names if no network has one of the excluded names."""
        known = {node.name for symbol in symbols for node in operators_of(symbol)}
        for name in sorted(self.excluded - known):
            raise AmpError(
                f"excluded_sym_names: the network has no operator named {name!r}{did_you_mean(name, known)}."
            )

    def _dtype_of(self, op: str) -> Optional[str]:
        if op in self.fp32_ops:
            return dtypes.FLOAT32
        if self.target_ops is None or op in self.target_ops & _REPLACED:
            return None
        return self.dtype if op in self.target_ops else dtypes.FLOAT32 if op in _ALLOWED else None

    def _meets_condition(self, node: Node) -> bool:
        return any(op == node.op and node.get(key) in values for op, key, values in self.conditions)


def make_request(
    target_dtype: Any,
    target_ops: Any,
    fp32_ops: Any,
    conditional_fp32_ops: Any,
    excluded: Any = None,
    store: bool = False,
    target_argument: str = "target_dtype_ops",
) -> Request:
    """Return the checked arguments; AmpError if one is malformed, or an operator is unknown or in two lists."""
    conditions = tuple(_condition(each) for each in _sequence("conditional_fp32_ops", conditional_fp32_ops))
    lists = {
        target_argument: _ops(target_argument, target_ops),
        "fp32_ops": _ops("fp32_ops", fp32_ops),
        "conditional_fp32_ops": frozenset(op for op, _, _ in conditions),
    }
    for (first, ops), (second, others) in itertools.combinations(lists.items(), 2):
        if ops & others:
            raise AmpError(f"operator {min(ops & others)!r} is in both {first} and {second}; keep it in one.")
    names = _sequence("excluded_sym_names", excluded)
    for name in names:
        if not isinstance(name, str) or not name.strip() or any(mark in name for mark in ",="):
            raise AmpError(f"excluded_sym_names: {name!r} is no name of an operator.")
    chosen = None if target_ops is None else lists[target_argument]
    return Request(low_precision(target_dtype), chosen, lists["fp32_ops"], conditions, frozenset(names), bool(store))


def operators_of(symbol: Any) -> List[Node]:
    """Return the operators of a symbol, with those in bodies of control flow, without casts of mxmp."""
    graph: Graph = EraseCasts()(to_graph(symbol)).graph
    return graph.operators()


def _sequence(argument: str, value: Any) -> List[Any]:
    if value is None:
        return []
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    raise AmpError(f"{argument} is a {type(value).__name__}; expected a list.")


def _ops(argument: str, value: Any) -> FrozenSet[str]:
    return frozenset(canonical_op(argument, name) for name in _sequence(argument, value))


def _condition(value: Any) -> Tuple[str, str, FrozenSet[str]]:
    try:
        op, attribute, values = value
    except (TypeError, ValueError):
        op = attribute = values = None
    if not isinstance(attribute, str) or not isinstance(values, (list, tuple)):
        raise AmpError(
            f"conditional_fp32_ops: {value!r} is no (operator, attribute, list of values), such as "
            f"('Activation', 'act_type', ['softrelu'])."
        )
    return canonical_op("conditional_fp32_ops", op), attribute, frozenset(map(str, values))
