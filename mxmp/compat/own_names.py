"""Names that single modules of MXNet get as their own, in place of Python's.

MXNet hands numbers to its library as text. Numpy 2 writes a tuple of its scalars as ``(np.int64(2),)``, where
numpy 1 wrote ``(2,)``, which alone the library reads.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict


class _TextType(type):
    """Calls go to `attribute_text`; instances are those of str."""

    def __call__(cls, value: Any = "") -> str:
        return attribute_text(value)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, str)


class Text(str, metaclass=_TextType):
    """`attribute_text` as a type, for modules that use ``str`` as one."""


def attribute_text(value: Any) -> str:
    """Return an operator's attribute as MXNet's library parses it.

    Example:
        >>> import numpy as np
        >>> attribute_text((np.int64(2), None, 3))
        '(2, None, 3)'
    """
    text = str(value)
    return _written(value) if "np." in text and type(value) in (tuple, list) else text


def _written(value: Any) -> str:
    """Return a value as ``repr`` writes it, with the scalars of numpy in its tuples and lists as plain numbers."""
    import numpy as np

    if type(value) is tuple:
        return f"({', '.join(map(_written, value))}{',' if len(value) == 1 else ''})"
    if type(value) is list:
        return f"[{', '.join(map(_written, value))}]"
    return str(value) if isinstance(value, (np.number, np.bool_)) else repr(value)


def integer(value: Any) -> int:
    """Return Python's ``int``, of an array with one value too: numpy 2.5 refuses one that has dimensions."""
    return int(value.item() if hasattr(value, "item") else value)


_OWN_NAMES: Dict[str, Dict[str, Any]] = {
    "mxnet._ctypes.ndarray": {"str": attribute_text},  # calls of operators: a function is the quicker one
    "mxnet._ctypes.symbol": {"str": attribute_text},  # operators in symbols
    "mxnet.io.io": {"str": attribute_text},  # the parameters of ImageRecordIter and its like
    "mxnet.symbol.symbol": {"str": Text},  # the shape of a variable; the module asks isinstance(..., str) too
    "gluoncv.model_zoo.center_net.target_generator": {"int": integer},  # of a class id, which is an array (1,)
}


def of_module(name: str) -> Dict[str, Any]:
    """Return the names of its own that a module of MXNet gets: none where numpy prints its scalars as it used to."""
    own = _OWN_NAMES.get(name)
    if not own:
        return {}
    import numpy as np

    return own if repr(np.int64(0)) != "0" else {}
