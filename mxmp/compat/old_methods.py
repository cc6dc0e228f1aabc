"""Methods that MXNet 1.9.1 calls on numpy's arrays, and numpy has renamed."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Dict, Mapping, Optional

_METHODS: Dict[str, Dict[str, str]] = {
    "mxnet.recordio": {"tostring": "tobytes"},  # removed in numpy 2.3: pack with several labels, pack_img
}


def of_module(name: str) -> Optional[Mapping[str, str]]:
    """Return the methods that a module calls by an old name, with their new names; None for a module without."""
    return _METHODS.get(name)


def renamed(code: CodeType, methods: Mapping[str, str]) -> CodeType:
    """Return the code of a module, and of all functions in it, with methods called by their new names."""
    code_type = type(code)
    constants = (renamed(const, methods) if isinstance(const, code_type) else const for const in code.co_consts)
    return code.replace(
        co_names=tuple(methods.get(name, name) for name in code.co_names),
        co_consts=tuple(constants),
    )
