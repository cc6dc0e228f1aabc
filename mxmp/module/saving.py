"""Checkpoints of modules: all files of one, or none."""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx
import numpy as np

from ..checkpoint import checkpoint_files
from ..errors import CheckpointError
from ..files import manifest_of, require_set, saving
from ..symbol import load_checkpoint, load_params, load_symbol
from ..symbol.checkpoint import load_arrays, named_arrays, save_params, write_arrays, write_symbol
from .setup import OptimizerSetup


class ParamsFiles:
    """The parameters of a module, to a file and back."""

    get_params: Any
    set_params: Any

    def save_params(self, fname: str) -> None:
        """Write the float32 parameters, whole or not at all, as ``mx.mod.Module.save_params``.

        Raises:
            CheckpointError: If the file cannot be written; then what was there is as it was.
        """
        save_params(fname, *self.get_params())

    def load_params(self, fname: str) -> None:
        """Set the parameters to those of a file that `save_params` wrote.

        Raises:
            CheckpointError: If the file is missing or damaged; then nothing is changed.
        """
        self.set_params(*load_params(fname))


class ModuleFiles(ParamsFiles, OptimizerSetup):
    """The checkpoints and optimizer states of a module, to files and back."""

    def save_checkpoint(
        self, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = False
    ) -> None:
        """Write the float32 symbol and parameters, which plain MXNet loads: all files or none.

        Args:
            prefix: Of the files ``<prefix>-symbol.json``, ``-<epoch>.params`` and ``.states``.
            epoch: Four digits in the names.
            save_optimizer_states: Also write optimizer states, masters and the loss scale.
            remove_amp_cast: As for ``mx.mod.Module``; False by default, so that nothing is lost.

        Raises:
            TrainerError: If states are asked for between backward and update; nothing is written.
            CheckpointError: If a file cannot be written; then nothing is changed.
        """
        if save_optimizer_states:  # before anything is written
            self._require_saveable("save_checkpoint")
        save_module(self, prefix, epoch, save_optimizer_states, remove_amp_cast)

    def _require_saveable(self, call: str) -> None:
        self._require(call)
        if self._training is not None:
            self._scaler.require_ready(call)

    @classmethod
    def load(cls, prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Any:
        """Return a module made from a checkpoint; of mxmp or, without states, of plain MXNet.

        Args:
            prefix: As for `save_checkpoint`.
            epoch: Likewise.
            load_optimizer_states: Whether `init_optimizer` loads the states and the loss scale.
            **kwargs: As for `Module`.

        Raises:
            CheckpointError: If a file is missing or damaged, or was not saved together with the others;
                the message names it.
        """
        states = _states_file(prefix, epoch, load_optimizer_states)
        symbol, arg_params, aux_params = load_checkpoint(prefix, epoch, *states)
        module = cls(symbol, **kwargs)
        module.mx_arg_params, module.mx_aux_params = arg_params, aux_params
        module.params_initialized = True
        if load_optimizer_states:
            (module.mx_preload_opt_states,) = states
        return module

    def save_optimizer_states(self, fname: str) -> None:
        """Save optimizer states, masters, counters, scheduler and loss scale to one file.

        A run that loads it, with the parameters, goes on bit for bit as if never stopped. Where
        the kvstore updates, MXNet writes its own format.

        Raises:
            TrainerError: Between backward and update: gradients are not saved.
        """
        self._require("save_optimizer_states")
        if self._training is not None:
            self._training.save(fname)
            return
        with saving(f"{fname}: the states", fname) as (name,):
            super().save_optimizer_states(name)

    def load_optimizer_states(self, fname: str) -> None:
        """Load what `save_optimizer_states` saved; the file decides over every field it has.

        Raises:
            StateError: If the file is damaged or does not fit; then nothing is changed.
            TrainerError: Between backward and update; or if the file has a loss scale, and the module was bound
                without one.
            FileNotFoundError: If there is no such file.
        """
        self._require("load_optimizer_states")
        if self._training is None:
            super().load_optimizer_states(fname)
        else:
            self._training.load(fname)


def save_module(module: Any, prefix: str, epoch: int, with_states: bool, remove_amp_cast: bool) -> None:
    """Write symbol, parameters and, if asked for, optimizer states of a module; all files or none."""
    symbol_file, params_file = checkpoint_files(prefix, epoch)
    files = [symbol_file, params_file, *_states_file(prefix, epoch, with_states)]
    with saving(f"{prefix}: the checkpoint", *files, manifest=manifest_of(params_file)) as names:
        new_symbol, new_params, *new_states = names
        write_symbol(new_symbol, module.symbol, remove_amp_cast)
        write_arrays(new_params, named_arrays(*module.get_params()))
        for name in new_states:
            module.save_optimizer_states(name)
    _log(module, files[1:])


def save_buckets(module: Any, prefix: str, epoch: int, with_states: bool, remove_amp_cast: bool) -> None:
    """Write the symbols of all buckets, their keys, the parameters and, if asked for, states: all files or none."""
    params, keys = module.get_params(), list(module.mx_buckets)
    symbol_files = [f"{prefix}-{key}-symbol.json" for key in keys]
    params_file = checkpoint_files(prefix, epoch)[1]
    files = [*symbol_files, f"{prefix}.buckets", params_file, *_states_file(prefix, epoch, with_states)]
    with saving(f"{prefix}: the checkpoint", *files, manifest=manifest_of(params_file)) as names:
        new_keys, new_params, *new_states = names[len(keys) :]
        write_arrays(new_params, named_arrays(*params))
        for name in new_states:
            module.save_optimizer_states(name)
        write_arrays(new_keys, [mx.nd.array(keys, dtype=np.int32)])
        for key, name in zip(keys, names):
            write_symbol(name, module.mx_sym_gen(key)[0], remove_amp_cast)
    _log(module, files[len(keys) + 1 :])


def load_buckets(prefix: str, epoch: int, with_states: bool) -> Any:
    """Return the symbols of a checkpoint by bucket key, its arguments and its auxiliary states."""
    file = f"{prefix}.buckets"  # epochs share it, and a later one may have more keys, so no manifest is asked
    found = load_arrays(file)
    if not isinstance(found, list) or len(found) != 1 or found[0].ndim != 1:
        raise CheckpointError(f"{file}: expected one array of bucket keys, as save_checkpoint writes it.")
    keys = found[0].asnumpy().astype(int).tolist()
    params_file = checkpoint_files(prefix, epoch)[1]
    symbol_files = [f"{prefix}-{key}-symbol.json" for key in keys]
    symbols = {key: load_symbol(symbol_file) for key, symbol_file in zip(keys, symbol_files)}
    params = load_params(params_file)
    require_set(manifest_of(params_file), *symbol_files, params_file, *_states_file(prefix, epoch, with_states))
    return (symbols, *params)


def _states_file(prefix: str, epoch: int, with_states: bool) -> Sequence[str]:
    return [f"{prefix}-{epoch:04d}.states"] if with_states else []


def _log(module: Any, files: Sequence[str]) -> None:
    for what, file in zip(("checkpoint", "optimizer state"), files):
        module.logger.info('Saved %s to "%s"', what, file)
