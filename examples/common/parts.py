"""What a checkpoint saves of a run: networks with their trainers, from Gluon and from the Symbolic API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import mxmp
import mxnet as mx
from mxnet import gluon

Work = Callable[[str], None]
"""Writes or reads the file that it is given."""


@dataclass
class Part:
    """A network and what trains it.

    Attributes:
        symbol: The network in float32, as plain MXNet loads it.
        save_params: Writes all parameters in float32, as ``mx.model.save_checkpoint`` does.
        load_params: Reads what `save_params` wrote.
        save_states: Writes the optimizer's states and the loss scale.
        load_states: Reads what `save_states` wrote.
    """

    symbol: Any
    save_params: Work
    load_params: Work
    save_states: Work
    load_states: Work


def gluon_part(net: gluon.HybridBlock, trainer: mxmp.gluon.Trainer, symbol: Any) -> Part:
    """Return what to save of a Gluon network and its trainer.

    Args:
        net: The network, initialized; converted or not.
        trainer: Its trainer.
        symbol: What the network gave for ``mx.sym.Variable`` before it was converted.
    """
    params, auxiliary = net.collect_params(), set(symbol.list_auxiliary_states())

    def save(file: str) -> None:
        params.save(file)
        arrays = mx.nd.load(file)
        mx.nd.save(file, {f"{'aux' if name in auxiliary else 'arg'}:{name}": a for name, a in arrays.items()})

    def load(file: str) -> None:
        params.load(file, next(iter(params.values())).list_ctx())

    return Part(symbol, save, load, trainer.save_states, trainer.load_states)


def module_part(module: mxmp.module.Module, symbol: Any = None) -> Part:
    """Return what to save of a module that is bound and has its optimizer.

    Args:
        module: The module.
        symbol: What a checkpoint has for its network, if not the module's own: that for inference, say.
    """
    own = module.symbol if symbol is None else symbol
    states = module.save_optimizer_states, module.load_optimizer_states
    return Part(own, module.save_params, module.load_params, *states)
