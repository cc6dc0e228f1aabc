"""Exchanges names and constants in the code of single modules of MXNet as they are loaded."""

from __future__ import annotations

from typing import Any, Dict, Tuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Mapping


class EmptyTuple(Tuple[()]):
    """``()``, which compares with numpy's scalars too: ``np.int64(2) == ()`` is an empty array, without a truth."""

    __array_ufunc__ = None  # numpy leaves the comparison to this class

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, tuple) and tuple.__eq__(self, other)

    __hash__ = tuple.__hash__


_TOBYTES = {"tostring": "tobytes"}  # a method of arrays, removed in numpy 2.3: pack with several labels, pack_img
_EMPTY = {(): EmptyTuple()}  # ``if size == ()``: numpy 2.2 and later refuse the truth of an empty array
_CHANGES: Dict[str, Mapping[Any, Any]] = {
    "mxnet.recordio": _TOBYTES,
    "mxnet.ndarray.numpy.random": _EMPTY,
    "mxnet.ndarray.numpy_extension.random": _EMPTY,
    "mxnet.symbol.numpy.random": _EMPTY,
    "mxnet.symbol.numpy_extension.random": _EMPTY,
}


def of_module(name: str) -> Mapping[Any, Any]:
    """Return what a module has in place of names (texts) and constants; nothing for a module that stays as it is."""
    return _CHANGES.get(name, {})


def changed(code: CodeType, changes: Mapping[Any, Any]) -> CodeType:
    """Return the code of a module, and of all functions in it, with other names and constants."""
    names = tuple(changes.get(name, name) for name in code.co_names)
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            constant = changed(constant, changes)
        elif constant == () and () in changes:
            constant = changes[()]
        constants.append(constant)
    return code.replace(co_names=names, co_consts=tuple(constants))
