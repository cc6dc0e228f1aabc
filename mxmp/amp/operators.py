"""Lists of operators by precision, as contrib.amp has them, and canonical names of operators."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, NamedTuple, NoReturn, Tuple

from mxnet.base import MXNetError, check_call, py_str

from .. import dtypes
from ..errors import DtypeError, PolicyError, did_you_mean
from ..mxnet_private import library, operator_handle
from ..rules import ALLOW, DENY, EVERY, INFER, RULES, Rule

_LOW, _FLOAT32, _EITHER, _WIDEST, _CONDITIONAL = "low", "float32", "either", "widest", "conditional"


class AmpError(PolicyError, AssertionError):
    """An argument of `mxmp.amp` makes no sense; contrib.amp raises AssertionError for the like."""


def canonical_dtype(argument: str, value: Any) -> str:
    """Return the name of a dtype that was given as an argument; AmpError if it is unknown."""
    try:
        return dtypes.canonical(value)
    except DtypeError as e:
        raise AmpError(f"{argument}: {e}") from e


def low_precision(target_dtype: Any) -> str:
    """Return the name of a ``target_dtype``; AmpError if it is neither float16 nor bfloat16, however spelled."""
    name = canonical_dtype("target_dtype", target_dtype)
    if name not in dtypes.LOW_PRECISION:
        raise AmpError(f"target_dtype={name!r}: expected float16 or bfloat16.")
    return name


def canonical_op(argument: str, name: Any) -> str:
    """Return the name that an operator has in graphs: 'Concat' for 'concat'; AmpError if MXNet has no such operator."""
    if not isinstance(name, str):
        raise AmpError(f"{argument}: {name!r} is no name of an operator.")
    try:
        return _describe(name)[0]
    except MXNetError as e:
        raise AmpError(f"{argument}: MXNet has no operator {name!r}{did_you_mean(name, RULES.ops())}.") from e


def list_lp16_ops(target_dtype: Any) -> List[str]:
    """Return the operators that run in low precision: matrix products and convolutions.

    Args:
        target_dtype: 'float16' or 'bfloat16', by name or as numpy's or MXNet's dtype; as for the
            other lists. Each operator that mxmp has a rule for stands in one of the first five.

    Raises:
        AmpError: If it is another dtype.
    """
    return _listed(target_dtype, _LOW)


def list_fp32_ops(target_dtype: Any) -> List[str]:
    """Return the operators that run in float32: exponentials, norms, losses, and what has no sound kernel."""
    return _listed(target_dtype, _FLOAT32)


def list_lp16_fp32_ops(target_dtype: Any) -> List[str]:
    """Return the operators that move or select values, or are left as they are: in either precision."""
    return _listed(target_dtype, _EITHER)


def list_widest_type_cast(target_dtype: Any) -> List[str]:
    """Return the operators that run in low precision unless they follow one that needs float32."""
    return _listed(target_dtype, _WIDEST)


def list_conditional_fp32_ops(target_dtype: Any) -> List[Tuple[str, str, List[str]]]:
    """Return (operator, attribute, values) of operators that run in float32 for these values of an attribute.

    Each operator has one entry, as in contrib.amp, for the attribute that decides most often. What depends on several
    attributes, or on one that is left out, has no place in such a list.
    """
    low = low_precision(target_dtype)
    found: List[Tuple[str, str, List[str]]] = []
    for op, each in _operators(low).items():
        if each.kind == _CONDITIONAL:
            values: Dict[str, List[str]] = {}
            for pair in [rule.when[0] for rule in each.rules if len(rule.when) == 1]:
                if all(_needs_float32(rule, low) for rule in each.rules if pair in rule.when):
                    values.setdefault(pair[0], []).append(pair[1])
            found += [(op, *max(values.items(), key=lambda item: len(item[1])))] if values else []
    return found


def list_loss_output_functions(target_dtype: Any) -> List[str]:
    """Return the loss heads: operators that start the backward pass by themselves."""
    operators = _operators(low_precision(target_dtype))
    return [op for op, each in operators.items() if any(rule.loss_head for rule in each.rules)]


def list_lp16_use_fp32_params(target_dtype: Any) -> Dict[str, List[str]]:
    """Return the inputs of low precision operators that are never cast, such as BatchNorm's parameters.

    Returns:
        By operator, the names of its inputs, empty where the input is cast. contrib.amp has it for
        bfloat16 alone.
    """
    found = {}
    for op, each in _operators(low_precision(target_dtype)).items():
        kept = {port for rule in each.rules if rule.keep is not EVERY for port in rule.keep}
        if kept and each.kind != _FLOAT32:
            found[op] = [name if port in kept else "" for port, name in enumerate(_describe(op)[1])]
    return found


class _Operator(NamedTuple):
    """The rules of one operator, and which list it stands in."""

    rules: Tuple[Rule, ...]
    kind: str


def _listed(target_dtype: Any, kind: str) -> List[str]:
    return [op for op, each in _operators(low_precision(target_dtype)).items() if each.kind == kind]


def _operators(low: str) -> Dict[str, _Operator]:
    rules: Dict[str, Tuple[Rule, ...]] = {}
    for rule in RULES:
        rules[rule.op] = (*rules.get(rule.op, ()), rule)
    return {op: _Operator(variants, _kind(variants, low)) for op, variants in rules.items()}


def _kind(rules: Tuple[Rule, ...], low: str) -> str:
    needs = [_needs_float32(rule, low) for rule in rules]
    if all(needs):
        return _FLOAT32
    if any(needs):
        return _CONDITIONAL
    categories = {rule.category for rule in rules}
    return _LOW if ALLOW in categories else _WIDEST if INFER in categories else _EITHER


def _needs_float32(rule: Rule, low: str) -> bool:
    if rule.keep is EVERY:  # left as it is
        return False
    stand_ins = {op for _, op in rule.stand_ins}
    has_kernel = low in rule.dtypes or any(each.op in stand_ins and low in each.dtypes for each in RULES)
    return rule.category == DENY or not has_kernel


def _describe(op: str) -> Tuple[str, List[str]]:
    """Return an operator's name in graphs and the names of its inputs; MXNetError if there is none."""
    name, description, key, returns = (ctypes.c_char_p() for _ in range(4))
    count = ctypes.c_uint()
    names, types, descriptions = (ctypes.POINTER(ctypes.c_char_p)() for _ in range(3))
    rest = (description, count, names, types, descriptions, key, returns)
    check_call(library.MXSymbolGetAtomicSymbolInfo(operator_handle(op), ctypes.byref(name), *map(ctypes.byref, rest)))
    arguments = [(py_str(names[i]), py_str(types[i])) for i in range(count.value)]
    return str(py_str(name.value)), [each for each, kind in arguments if "Symbol" in kind]


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise an AmpError that says what to do instead."""
    raise AmpError(
        "mxmp.amp.lists cannot be changed in place: nothing would come of it. Give target_dtype_ops, "
        "fp32_ops or conditional_fp32_ops a changed copy, such as [*lists.symbol_fp16.FP32_FUNCS, 'relu']."
    )


class FixedList(List[Any]):
    """A list whose changes are errors; its copies, slices and sums are plain lists."""

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> Any:
        return list, (list(self),)


class FixedDict(Dict[str, Any]):
    """A dict whose changes are errors."""

    update = pop = popitem = clear = setdefault = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def fixed_lists(dtype: str) -> Tuple[Any, ...]:
    """Return the seven lists of operators for a dtype, in the order of contrib.amp's files."""
    first = (list_lp16_ops, list_lp16_fp32_ops, list_lp16_use_fp32_params)
    others = (list_fp32_ops, list_conditional_fp32_ops, list_widest_type_cast, list_loss_output_functions)
    lists = [listed(dtype) for listed in (*first, *others)]
    return tuple(FixedDict(each) if isinstance(each, dict) else FixedList(each) for each in lists)
