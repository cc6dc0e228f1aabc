"""Files of nets: parameters, exported models, checkpoints with trainers' states; each written whole or not at all."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Tuple

import mxnet as mx
from mxnet import MXNetError, gluon

from ..checkpoint import check_arrays_file, checkpoint_files, params_file_of
from ..errors import CheckpointError, TrainerError, a_type_of, mxnet_reason
from ..files import is_local, manifest_of, require_file, require_set, saving
from ..symbol import save_checkpoint as save_model
from ..symbol.checkpoint import require_whole
from ..train.masters import masters_of
from ..train.states import all_or_none
from . import storage
from .blocks import plain_class
from .cache import ConvertedGraph
from .trainer import Trainer


def check(filename: str) -> None:
    """Raise an error that names the fault in a file of parameters, before MXNet reads the file."""
    if is_local(filename):
        check_arrays_file(filename)


def save(filename: str, write: Callable[[str], None]) -> None:
    """Write a file of parameters whole or not at all; ``write`` is called with the name to write to."""
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
    """Write a net's graph and its parameters, in the dtypes in which they are stored, as a checkpoint."""
    symbol, params = graph.converted.symbol, graph.trace.params
    kind = plain_class(net)
    with storage.reading_stored():
        if kind.export is not gluon.HybridBlock.export:  # the class has an ``export`` of its own
            net._cached_graph = (graph.trace.inputs, symbol)
            net._cached_op_args = [(False, param) for param in params.values()]
            kind.export(net, path, epoch, remove_amp_cast=remove_amp_cast)
            return
        values = {name: param._reduce() for name, param in params.items()}
    aux = {name: values[name] for name in symbol.list_auxiliary_states() if name in values}
    args = {name: values[name] for name in symbol.list_arguments() if name in values}
    save_model(path, epoch, symbol, args, aux, remove_amp_cast=remove_amp_cast)


def save_checkpoint(prefix: str, epoch: int, net: gluon.Block, trainer: Trainer) -> None:
    """Save a net's parameters and its trainer's states as one set: all files or none.

    A run that loads both by `load_checkpoint` goes on as if it had never stopped, bit for bit. The parameters are
    float32 and load in plain MXNet. The manifest has a hash of each file. If a kill leaves new and old files together,
    loading raises.

    Args:
        prefix: The files are ``<prefix>-<epoch>.params``, ``.states`` and ``.manifest.json``.
        epoch: Number in these names, of four digits.
        net: Any Gluon net, converted or not.
        trainer: Its trainer, a `Trainer` of mxmp.

    Raises:
        CheckpointError: If the epoch is not a whole number from 0 on, or a file cannot be written. Then no file
            changes.
        TrainerError: Between backward and step, or if ``net`` or ``trainer`` has a wrong type. Then nothing is written.
    """
    params, states = _files("save_checkpoint", prefix, epoch, net, trainer)
    with saving(f"{prefix}: the checkpoint", params, states, manifest=manifest_of(params)) as names:
        save(names[0], net.save_parameters)
        trainer.save_states(names[1])


def load_checkpoint(prefix: str, epoch: int, net: gluon.Block, trainer: Trainer) -> None:
    """Load a checkpoint of `save_checkpoint` into a net and its trainer, which were made as before the save.

    Args:
        prefix: As for `save_checkpoint`.
        epoch: As for `save_checkpoint`.
        net: The net, converted or not, under any policy.
        trainer: Its trainer, a `Trainer` of mxmp.

    Raises:
        CheckpointError: If a file is missing or damaged, or was not saved together with the other, or if the parameters
            are of another net. As with all errors, nothing changes.
        TrainerError: Between backward and step, or if ``net`` or ``trainer`` has a wrong type.
        StateError: If the states are of another training.
    """
    params, states = _files("load_checkpoint", prefix, epoch, net, trainer)
    params_file_of(prefix, epoch)  # its error lists the epochs that there are
    require_file(states)
    require_set(manifest_of(params), params, states)
    trainer._require_between_steps("load_checkpoint")
    check(params)
    with _values_kept(net):
        try:
            net.load_parameters(params)
        except (AssertionError, ValueError) as e:  # MXNet's, for another name, shape or dtype
            raise CheckpointError(
                f"{params}: the parameters do not fit the net, so that nothing is loaded: {e} Make the net as in the "
                f"saved run."
            ) from e
        trainer.load_states(states)


@contextlib.contextmanager
def _values_kept(net: gluon.Block) -> Iterator[None]:
    """Give a net's parameters and masters their present values back if an exception ends this context.

    Loads write into the arrays that there are. The copies of their values are on the host.
    """
    params = list(net.collect_params().values())
    arrays = [array for param in params for array in (*(param._data or ()), *masters_of(param).values())]
    values = [array.copyto(mx.cpu()) for array in arrays]
    with all_or_none(params):
        try:
            yield
        except BaseException:
            for value, array in zip(values, arrays):
                value.copyto(array)
            raise


def _files(call: str, prefix: str, epoch: int, net: Any, trainer: Any) -> Tuple[str, str]:
    """Return the names of the files of parameters and states; raise if a net or trainer has a wrong type."""
    if not isinstance(net, gluon.Block):
        raise TrainerError(f"{call}: expected a Gluon net, found {a_type_of(net)}.")
    if not isinstance(trainer, Trainer):
        raise TrainerError(
            f"{call}: expected a trainer of mxmp, found {a_type_of(trainer)} of {type(trainer).__module__}; see "
            "Trainer.adopt."
        )
    params = checkpoint_files(prefix, epoch)[1]
    return params, f"{prefix}-{epoch:04d}.states"
