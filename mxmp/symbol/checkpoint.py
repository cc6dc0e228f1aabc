"""Checkpoints: files of a symbol and its parameters, as ``mx.model.save_checkpoint`` writes them.

On a full disk MXNet cuts files off without an error. A symbol's file is then empty, and an arrays file lacks the last 4
KiB. A damaged file may make MXNet take all memory (`mxmp.checkpoint`).
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

import mxnet as mx

from ..arrays import wait_until_readable
from ..checkpoint import check_arrays_file, checkpoint_files, params_file_of
from ..errors import CheckpointError, GraphError, MxmpError, ParamsError, PolicyError, mxnet_reason
from ..files import manifest_of, require_file, require_set, saving
from ..graph import check_json
from ..passes.decide import OF_REGION
from .inference import check_inputs, to_graph

_NOT_WHOLE = "what was written is not whole; is the disk full?"

Arrays = Union[Dict[str, Any], List[Any]]


class Checkpoint(NamedTuple):
    """A checkpoint's content.

    Attributes:
        symbol: The symbol.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states by name.
    """

    symbol: Any
    arg_params: Dict[str, Any]
    aux_params: Dict[str, Any]


@contextlib.contextmanager
def naming_files(symbol_file: str, params_file: Optional[str]) -> Iterator[None]:
    """Let errors about a checkpoint's network or parameters, raised in the block, begin with the file's name."""
    try:
        yield
    except MxmpError as e:
        if isinstance(e, PolicyError) and not str(e).startswith(OF_REGION):
            raise  # of what was asked for, not of the file
        file = params_file if isinstance(e, ParamsError) else symbol_file
        raise type(e)(f"{file}: {e}") from e


def load_symbol(file: str) -> Any:
    """Return the symbol in a JSON file, which may be of any version of MXNet up to 1.9.1.

    Raises:
        CheckpointError: If the file is missing, no symbol, or malformed; the message names the file,
            and the node where there is one.
    """
    require_file(file)
    try:
        with open(file, encoding="utf-8") as stream:
            text = stream.read()
        check_inputs(check_json(text, mx.operator.get_all_registered_operators()))
        symbol = mx.sym.load_json(text)
        to_graph(symbol)  # which checks the bodies of loops
        return symbol
    except UnicodeDecodeError:
        raise CheckpointError(f"{file}: it is no text, so no symbol's JSON.") from None
    except (OSError, GraphError) as e:
        raise CheckpointError(f"{file}: {e}") from e
    except mx.MXNetError as e:
        raise CheckpointError(f"{file}: MXNet cannot load it: {mxnet_reason(e)}") from e


def load_arrays(file: str) -> Arrays:
    """Return the arrays in a file of ``mx.nd.save``; a CheckpointError names the entry of a damaged file."""
    file = os.fspath(file)
    check_arrays_file(file)
    try:
        arrays: Arrays = mx.nd.load(file)
        for array in arrays.values() if isinstance(arrays, dict) else arrays:
            if min(array.shape, default=0) < 0:
                raise ValueError(f"a size of the shape {array.shape} is beyond what this MXNet counts")
    except (mx.MXNetError, ValueError, OSError) as e:
        raise CheckpointError(f"{file}: MXNet cannot load it: {mxnet_reason(e)}") from e
    return arrays


def write_arrays(file: str, arrays: Arrays) -> None:
    """Write arrays, as ``mx.nd.save``, and raise OSError if not all of it was written."""
    values = arrays.values() if isinstance(arrays, dict) else arrays
    for array in values:
        wait_until_readable(array)  # also because MXNet writes the shape of sparse values before it waits for them
    is_numpy = any(isinstance(array, mx.np.ndarray) for array in values)
    try:
        (mx.npx.save if is_numpy else mx.nd.save)(file, arrays)
    except mx.MXNetError as e:
        noticed = "FileStream.Write incomplete" in str(e)
        raise OSError(_NOT_WHOLE if noticed else mxnet_reason(e)) from e
    require_whole(file)


def require_whole(file: str) -> None:
    """Raise OSError if a file of arrays that MXNet has just written is cut off."""
    try:
        check_arrays_file(file)
    except CheckpointError as e:
        raise OSError(_NOT_WHOLE) from e


def write_symbol(file: str, symbol: Any, remove_amp_cast: bool) -> None:
    """Write a symbol's JSON, as ``Symbol.save``, and raise OSError if that fails."""
    with open(file, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(symbol.tojson(remove_amp_cast=remove_amp_cast))


def load_params(file: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return the arguments and the auxiliary states in a file of parameters.

    Raises:
        CheckpointError: If the file is missing, damaged, or holds something else.
    """
    arrays = load_arrays(file)
    params: Dict[str, Dict[str, Any]] = {"arg": {}, "aux": {}}
    for name, array in arrays.items() if isinstance(arrays, dict) else ():
        kind, _, rest = name.partition(":")
        if kind not in params or not rest:
            raise CheckpointError(
                f"{file}: it holds '{name}'; expected names such as 'arg:fc_weight' or 'aux:bn_mean'."
            )
        params[kind][rest] = array
    if arrays and not isinstance(arrays, dict):
        raise CheckpointError(f"{file}: its {len(arrays)} arrays have no names; expected a checkpoint's parameters.")
    return params["arg"], params["aux"]


def load_checkpoint(prefix: str, epoch: int, *others: str) -> Checkpoint:
    """Return a checkpoint's symbol and parameters; ``others`` are files that are read later, checked with these.

    Raises:
        CheckpointError: If a file is missing or damaged, or was not saved together with the others;
            the message names it.
    """
    files = checkpoint_files(prefix, epoch)
    checkpoint = Checkpoint(load_symbol(files[0]), *load_params(params_file_of(prefix, epoch)))
    require_set(manifest_of(files[1]), *files, *others)  # last: of a damaged file more can be said
    return checkpoint


def save_checkpoint(
    prefix: str, epoch: int, symbol: Any, arg_params: Mapping[str, Any], aux_params: Any, remove_amp_cast: bool = False
) -> None:
    """Write a checkpoint, casts included, both files or neither, and its manifest.

    Args:
        prefix: Of the files.
        epoch: Four digits in the name of the second.
        symbol: The symbol.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states by name.
        remove_amp_cast: Whether to leave out ``amp_cast``, as ``Symbol.save`` does.

    Raises:
        CheckpointError: If the folder is missing or cannot be written to; then nothing is changed.
    """
    files = checkpoint_files(prefix, epoch)
    with saving(f"{prefix}: the checkpoint", *files, manifest=manifest_of(files[1])) as (symbol_file, params_file):
        write_symbol(symbol_file, symbol, remove_amp_cast)
        write_arrays(params_file, named_arrays(arg_params, aux_params))


def save_params(file: str, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]) -> None:
    """Write a checkpoint's file of parameters, whole or not at all."""
    with saving(f"{file}: the parameters", file) as (name,):
        write_arrays(name, named_arrays(arg_params, aux_params))


def named_arrays(arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]) -> Dict[str, Any]:
    """Return arrays under the names that they have in a file of parameters."""
    groups = ("arg", arg_params), ("aux", aux_params)
    return {f"{kind}:{name}": array for kind, arrays in groups for name, array in arrays.items()}
