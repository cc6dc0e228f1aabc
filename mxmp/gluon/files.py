"""Save, load and export the files of a converted net: whole or not at all, and checked before they are read."""

from __future__ import annotations

import os
from typing import Callable

from mxnet import MXNetError, gluon

from ..checkpoint import check_arrays_file
from ..errors import ConvertError, mxnet_reason
from ..files import is_local, saving
from ..symbol import save_checkpoint
from ..symbol.checkpoint import require_whole
from . import storage
from .blocks import plain_class
from .cache import ConvertedGraph


def require_folder(path: str) -> None:
    """Raise a ConvertError if there is no folder for the files of an export."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ConvertError(f"export: path={path!r}: there is no folder {folder}; make it first.")


def check(filename: str) -> None:
    """Raise an error that says what is wrong with a file of parameters, before it is read."""
    if is_local(filename):
        check_arrays_file(filename)


def save(filename: str, write: Callable[[str], None]) -> None:
    """Write a file of parameters through ``write``, which is given the name to write to, whole or not at all."""
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


def export(net: gluon.HybridBlock, graph: ConvertedGraph, path: str, epoch: int, remove_amp_cast: bool) -> None:
    """Write a graph of a net and its parameters, as they are stored, as a checkpoint."""
    symbol, params = graph.converted.symbol, graph.trace.params
    kind = plain_class(net)
    with storage.reading_stored():
        if kind.export is not gluon.HybridBlock.export:  # the user's own writes what it likes
            net._cached_graph = (graph.trace.inputs, symbol)
            net._cached_op_args = [(False, param) for param in params.values()]
            kind.export(net, path, epoch, remove_amp_cast=remove_amp_cast)
            return
        values = {name: param._reduce() for name, param in params.items()}
    aux = {name: values[name] for name in symbol.list_auxiliary_states() if name in values}
    args = {name: values[name] for name in symbol.list_arguments() if name in values}
    save_checkpoint(path, epoch, symbol, args, aux, remove_amp_cast=remove_amp_cast)
