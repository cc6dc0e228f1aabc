"""The operator lists of contrib.amp: how mxmp's rules fill them, and the policy that a user's lists mean."""

from __future__ import annotations

import glob
import itertools
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterable, List, NoReturn, Tuple

import mxnet as mx

from .. import dtypes
from ..errors import DtypeError, PolicyError, a_type_of, did_you_mean
from ..mxnet_private import operator_name
from ..passes import EraseCasts
from ..policy import Overrides, Policy
from ..rules import ALLOW, DENY, EVERY, INFER, RULES, Rule
from ..symbol import to_graph

_LOW, _FLOAT32, _EITHER, _WIDEST, _CONDITIONAL = "low", "float32", "either", "widest", "conditional"


class AmpError(PolicyError, AssertionError):
    """An argument of `mxmp.amp` makes no sense; contrib.amp raises AssertionError for the like."""


@dataclass(frozen=True)
class ListPolicy(Policy):
    """The policy of operator lists: a network may lack an operator, or an attribute value may be part of the entry.

    Attributes:
        conditions: Pairs ('operator.attribute=value', float32).
    """

    conditions: Overrides = ()
    must_match = False  # amp.init has one policy for all networks to come

    def override(self, op: str, name: str, attrs: Iterable[Tuple[str, str]] = ()) -> Any:
        """Return (dtype, reason) for a node: float32 if it meets a condition, else by the other lists."""
        # Attributes as the network has them: a default that is left out meets no condition, as in contrib.amp.
        conditions = [] if not self.conditions else [f"{op}.{key}={value}" for key, value in attrs]
        met = [pair for pair in self.conditions if pair[0] in conditions]
        return (met[0][1], f"condition {met[0][0]!r}") if met else super().override(op, name, attrs)


def list_policy(
    target_dtype: Any,
    target_ops: Any,
    fp32_ops: Any,
    conditional_fp32_ops: Any,
    excluded: Any = None,
    store: bool = False,
    symbols: Iterable[Any] = (),
    argument: str = "target_dtype_ops",
) -> ListPolicy:
    """Return the policy that the arguments of contrib.amp's functions mean.

    Args:
        target_dtype: An argument of ``amp.convert_symbol``, and so are the next five.
        target_ops: As above.
        fp32_ops: As above.
        conditional_fp32_ops: As above.
        excluded: As above.
        store: Whether parameters are stored in ``target_dtype``.
        symbols: The network, or those of all buckets, of which one has each excluded name.
        argument: The name of ``target_ops`` in messages.

    Raises:
        AmpError: If an argument is malformed, an operator or name is unknown, or an operator is in two lists.
    """
    dtype = _low_precision(target_dtype)
    conditions = [_condition(value) for value in _listed("conditional_fp32_ops", conditional_fp32_ops)]
    lists = {
        argument: _canonical(argument, target_ops),
        "fp32_ops": _canonical("fp32_ops", fp32_ops),
        "conditional_fp32_ops": frozenset(op for op, _ in conditions),
    }
    for (first, ops), (second, more) in itertools.combinations(lists.items(), 2):
        if ops & more:
            raise AmpError(f"operator {min(ops & more)!r} is in both {first} and {second}; keep it in one.")
    overrides = dict.fromkeys(lists["fp32_ops"], dtypes.FLOAT32)
    if target_ops is not None:
        other_ops = {rule.op for rule in RULES if rule.category == ALLOW} - lists[argument]
        # If another operator may replace one, rules decide by shapes.
        replaced = {rule.op for rule in RULES if rule.substitutes}
        overrides.update(dict.fromkeys(other_ops, dtypes.FLOAT32))
        overrides.update(dict.fromkeys(lists[argument] - replaced, dtype))
    # contrib.amp accepts unknown names. Names of mxmp's own casts are not names of the network.
    names = dict.fromkeys(map(str, _listed("excluded_sym_names", excluded)))
    nodes = {node.name for sym in symbols for node in EraseCasts()(to_graph(sym)).graph.operators()} if names else ()
    for name in names:
        if name not in nodes:
            hint = did_you_mean(name, nodes)
            raise AmpError(f"excluded_sym_names: the network has no operator named {name!r}{hint}.")
    return ListPolicy(
        param_dtype=dtype if store else dtypes.FLOAT32,
        compute_dtype=dtype,
        loss_scale="dynamic" if dtype == dtypes.FLOAT16 else None,
        ops=overrides.items(),  # type: ignore[arg-type]  # normalised by the policy
        names=tuple((glob.escape(name), dtypes.FLOAT32) for name in names),  # a policy's names are patterns
        conditions=tuple(sorted((text, dtypes.FLOAT32) for _, texts in conditions for text in texts)),
    )


def list_lp16_ops(target_dtype: Any) -> List[str]:
    """Return the operators that run in low precision: matrix products and convolutions.

    Args:
        target_dtype: 'float16' or 'bfloat16', by name or as numpy's or MXNet's dtype; as for the other lists. Each
            operator with a rule of mxmp is in one of the first five lists.

    Raises:
        AmpError: If it is another dtype.
    """
    return _ops_of(target_dtype, _LOW)


def list_fp32_ops(target_dtype: Any) -> List[str]:
    """Return the operators that run in float32: exponentials, norms, losses, and those without a sound kernel."""
    return _ops_of(target_dtype, _FLOAT32)


def list_lp16_fp32_ops(target_dtype: Any) -> List[str]:
    """Return the operators that run in either precision: they move or select values, or are left as they are."""
    return _ops_of(target_dtype, _EITHER)


def list_widest_type_cast(target_dtype: Any) -> List[str]:
    """Return the operators that run in low precision unless they follow one that needs float32."""
    return _ops_of(target_dtype, _WIDEST)


def list_conditional_fp32_ops(target_dtype: Any) -> List[Tuple[str, str, List[str]]]:
    """Return (operator, attribute, values): operators that run in float32 for these values of an attribute.

    Each operator has one entry, as in contrib.amp: its attribute is the one that decides most often. The list lacks
    operators that decide by several attributes, or by an attribute that is left out.
    """
    dtype, entries = _low_precision(target_dtype), []
    for op in _ops_of(dtype, _CONDITIONAL):
        values: Dict[str, List[str]] = {}
        # An entry has one attribute. Rules of two attributes count if all rules with a value agree.
        for pair in [rule.when[0] for rule in RULES.variants(op) if len(rule.when) == 1]:
            if all(_needs_float32(rule, dtype) for rule in RULES.variants(op) if pair in rule.when):
                values.setdefault(pair[0], []).append(pair[1])
        entries += [(op, *max(values.items(), key=lambda item: len(item[1])))] if values else []
    return entries


def list_loss_output_functions(target_dtype: Any) -> List[str]:
    """Return the loss heads: operators that start the backward pass by themselves."""
    _low_precision(target_dtype)
    return [op for op in RULES.ops() if any(rule.loss_head for rule in RULES.variants(op))]


def list_lp16_use_fp32_params(target_dtype: Any) -> Dict[str, List[str]]:
    """Return the inputs of low precision operators that are never cast, such as BatchNorm's parameters.

    Returns:
        By operator, the names of its inputs, '' for an input that is cast. contrib.amp has this list only for bfloat16.
    """
    float32, inputs = list_fp32_ops(target_dtype), {}
    for op in RULES.ops():
        kept = {port for rule in RULES.variants(op) if rule.keep is not EVERY for port in rule.keep}
        if kept and op not in float32:
            arguments = mx.operator.get_operator_arguments(op)
            ports = [name for name, kind in zip(arguments.names, arguments.types) if "Symbol" in kind]
            inputs[op] = [name if port in kept else "" for port, name in enumerate(ports)]
    return inputs


def _ops_of(target_dtype: Any, kind: str) -> List[str]:
    dtype = _low_precision(target_dtype)
    return [op for op in RULES.ops() if _kind(op, dtype) == kind]


def _kind(op: str, dtype: str) -> str:
    """Return the list of an operator for a low precision dtype."""
    needs = {_needs_float32(rule, dtype) for rule in RULES.variants(op)}
    if needs != {False}:
        return _FLOAT32 if needs == {True} else _CONDITIONAL
    categories = {rule.category for rule in RULES.variants(op)}
    return _LOW if ALLOW in categories else _WIDEST if INFER in categories else _EITHER


def _needs_float32(rule: Rule, dtype: str) -> bool:
    has_kernel = dtype in rule.dtypes or RULES.has_substitutes(rule, dtype)
    return rule.keep is not EVERY and (rule.category == DENY or not has_kernel)  # EVERY: it is left as it is


def _low_precision(target_dtype: Any) -> str:
    try:
        name = dtypes.canonical(target_dtype)
    except DtypeError as e:
        raise AmpError(f"target_dtype: {e}") from e
    if name not in dtypes.LOW_PRECISION:
        raise AmpError(f"target_dtype={name!r}: expected float16 or bfloat16.")
    return name


def _listed(argument: str, value: Any) -> List[Any]:
    if value is not None and not isinstance(value, (list, tuple, set, frozenset)):
        raise AmpError(f"{argument} is {a_type_of(value)}; expected a list.")
    return list(value or ())


def _canonical(argument: str, value: Any) -> FrozenSet[str]:
    """Return the names that listed operators have in graphs."""
    ops = set()
    for name in _listed(argument, value):
        try:
            ops.add(operator_name(str(name)))
        except mx.MXNetError as e:
            raise AmpError(f"{argument}: MXNet has no operator {name!r}{did_you_mean(str(name), RULES.ops())}.") from e
    return frozenset(ops)


def _condition(value: Any) -> Tuple[str, List[str]]:
    """Return the operator of a condition, and the texts of the condition in a policy."""
    if isinstance(value, (list, tuple)) and len(value) == 3 and isinstance(value[2], (list, tuple)):
        (op,) = _canonical("conditional_fp32_ops", value[:1])
        return op, [f"{op}.{value[1]}={each}" for each in value[2]]
    raise AmpError(
        f"conditional_fp32_ops: {value!r} is no (operator, attribute, list of values), such as "
        f"('Activation', 'act_type', ['softrelu'])."
    )


class _Fixed:
    """Refuses changes in place, which would have no effect on conversions; copies are plain lists and dicts."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AmpError(
            "mxmp.amp.lists cannot be changed in place: nothing would come of it. Give target_dtype_ops, "
            "fp32_ops or conditional_fp32_ops a changed copy, such as [*lists.symbol_fp16.FP32_FUNCS, 'relu']."
        )

    append = extend = insert = remove = sort = reverse = __iadd__ = __imul__ = _refuse
    pop = clear = __setitem__ = __delitem__ = update = popitem = setdefault = __ior__ = _refuse

    def __reduce__(self) -> Any:
        kind = list if isinstance(self, list) else dict
        return kind, (kind(self),)  # type: ignore[call-overload]


class FixedList(_Fixed, List[Any]):
    """A list of operators."""


class FixedDict(_Fixed, Dict[str, Any]):
    """A list of operators with their inputs."""


def fixed_lists(dtype: str) -> Tuple[Any, ...]:
    """Return the seven lists of operators for a dtype, in the order of contrib.amp's files."""
    first = (list_lp16_ops, list_lp16_fp32_ops, list_lp16_use_fp32_params)
    other_lists = (list_fp32_ops, list_conditional_fp32_ops, list_widest_type_cast, list_loss_output_functions)
    lists = [listed(dtype) for listed in (*first, *other_lists)]
    return tuple(FixedDict(each) if isinstance(each, dict) else FixedList(each) for each in lists)
