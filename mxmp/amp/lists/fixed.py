"""Lists and dicts that are read and copied, but not changed."""

from __future__ import annotations

from typing import Any, Dict, List, NoReturn

from ..operators import AmpError


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
