"""Lists and dicts that raise an error where they are changed in place."""

from __future__ import annotations

from typing import Any, Dict, List, NoReturn, Tuple

from .. import operators


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise an AmpError that says what to do instead."""
    raise operators.AmpError(
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
    return (
        FixedList(operators.list_lp16_ops(dtype)),
        FixedList(operators.list_lp16_fp32_ops(dtype)),
        FixedDict(operators.list_lp16_use_fp32_params(dtype)),
        FixedList(operators.list_fp32_ops(dtype)),
        FixedList(operators.list_conditional_fp32_ops(dtype)),
        FixedList(operators.list_widest_type_cast(dtype)),
        FixedList(operators.list_loss_output_functions(dtype)),
    )
