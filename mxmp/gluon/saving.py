"""Files of a converted net: written whole or not at all, and checked before they are read."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Tuple

from mxnet import MXNetError, gluon

from ..arrays_file import check_arrays_file
from ..errors import mxnet_reason
from ..files import is_local, saving
from ..symbol.arrays import require_whole

Arrays = Dict[str, Any]


def save(filename: str, write: Callable[[str], None]) -> None:
    """Write a file of parameters through ``write``, which is given the name to write to.

    Raises:
        CheckpointError: If the file cannot be written; then what was there is as it was.
    """
    if not is_local(filename):
        write(filename)
        return
    with saving(f"{filename}: the parameters", filename) as (name,):
        try:
            write(name)
        except gluon.parameter.DeferredInitializationError:
            raise
        except MXNetError as e:
            raise OSError(mxnet_reason(e)) from e
        require_whole(name)


def check(filename: str) -> None:
    """Check a file of parameters before MXNet reads it.

    Raises:
        CheckpointError: If it is missing or damaged; it names the entry.
    """
    if is_local(filename):
        check_arrays_file(filename)


def values_for(symbol: Any, params: Iterable[Tuple[bool, gluon.Parameter]]) -> Tuple[Arrays, Arrays]:
    """Return the arguments and the auxiliary states of a symbol.

    Args:
        symbol: What a net runs.
        params: What its cached operator is given: whether it is an input, and the parameter else.
    """
    found = {param.name: param._reduce() for is_input, param in params if not is_input}
    groups = (symbol.list_arguments(), symbol.list_auxiliary_states())
    args, aux = ({name: found[name] for name in group if name in found} for group in groups)
    return args, aux
