"""What a checkpoint saves of a run: networks with their trainers, from Gluon and from the Symbolic API."""

from __future__ import annotations

import abc
from typing import Any

import mxmp
import mxnet as mx
from mxnet import gluon


class Part(abc.ABC):
    """A network and what trains it.

    Attributes:
        symbol: The network in float32, as plain MXNet loads it.
    """

    symbol: Any

    @abc.abstractmethod
    def save_params(self, file: str) -> None:
        """Write all parameters in float32, as ``mx.model.save_checkpoint`` does."""

    @abc.abstractmethod
    def load_params(self, file: str) -> None:
        """Read what `save_params` wrote."""

    @abc.abstractmethod
    def save_states(self, file: str) -> None:
        """Write the optimizer's states and the loss scale."""

    @abc.abstractmethod
    def load_states(self, file: str) -> None:
        """Read what `save_states` wrote."""


class GluonPart(Part):
    """A Gluon network and its trainer.

    Args:
        net: The network, initialized; converted or not.
        trainer: Its trainer.
        symbol: What the network gave for ``mx.sym.Variable`` before it was converted.
    """

    def __init__(self, net: gluon.HybridBlock, trainer: mxmp.gluon.Trainer, symbol: Any) -> None:
        self._net, self._trainer, self.symbol = net, trainer, symbol

    def save_params(self, file: str) -> None:
        """Write all parameters in float32, as ``mx.model.save_checkpoint`` does."""
        self._net.collect_params().save(file)
        auxiliary = set(self.symbol.list_auxiliary_states())
        arrays = mx.nd.load(file)
        mx.nd.save(file, {f"{'aux' if name in auxiliary else 'arg'}:{name}": a for name, a in arrays.items()})

    def load_params(self, file: str) -> None:
        """Read what `save_params` wrote."""
        params = self._net.collect_params()
        params.load(file, next(iter(params.values())).list_ctx())

    def save_states(self, file: str) -> None:
        """Write the optimizer's states and the loss scale."""
        self._trainer.save_states(file)

    def load_states(self, file: str) -> None:
        """Read what `save_states` wrote."""
        self._trainer.load_states(file)


class ModulePart(Part):
    """A module that is bound and has its optimizer.

    Args:
        module: The module.
        symbol: What a checkpoint has for its network, if not the module's own: that for inference, say.
    """

    def __init__(self, module: mxmp.module.Module, symbol: Any = None) -> None:
        self._module = module
        self.symbol = module.symbol if symbol is None else symbol

    def save_params(self, file: str) -> None:
        """Write all parameters in float32, as ``mx.model.save_checkpoint`` does."""
        self._module.save_params(file)

    def load_params(self, file: str) -> None:
        """Read what `save_params` wrote."""
        self._module.load_params(file)

    def save_states(self, file: str) -> None:
        """Write the optimizer's states and the loss scale."""
        self._module.save_optimizer_states(file)

    def load_states(self, file: str) -> None:
        """Read what `save_states` wrote."""
        self._module.load_optimizer_states(file)
