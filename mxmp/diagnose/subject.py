"""What a user gives to be compared: a network, batches that it is run on, and perhaps losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple, Union

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..devices.bfloat16 import runs_bfloat16
from ..devices.processor import read_processor
from ..errors import ConvertError
from ..gluon.lookup import roots
from ..mxnet_private import blocks
from ..passes.scale_loss import is_loss_head
from ..policy import Policy
from ..probe.gradient_errors import Loss
from ..symbol.inference import to_graph
from .batches import read_batches
from .networks.gluon_net import GluonNet
from .networks.network import Network
from .networks.symbols import BoundModule, Model

_FLOAT32 = Policy.parse("float32")


@dataclass(frozen=True)
class Subject:
    """A network that has noted batches.

    Attributes:
        network: The network.
        has_losses: Whether gradients can be compared.
        loss: A function of a net's output and a label, None of a symbol.
        labels: The label of each batch, for that function.
    """

    network: Network
    has_losses: bool
    loss: Optional[Callable[..., Any]] = None
    labels: Sequence[Any] = ()

    def loss_of(self, number: int, out_format: Any) -> Optional[Loss]:
        """Return what gives the losses of a graph's outputs for a batch, by its number; None where loss heads do."""
        if self.loss is None:
            return None
        loss, label = self.loss, self.labels[number]

        def losses(outputs: List[Any]) -> Sequence[Any]:
            found = loss(blocks.regroup(outputs, out_format), label)
            several = list(found) if isinstance(found, (list, tuple)) else [found]
            if not several or not all(isinstance(each, mx.nd.NDArray) for each in several):
                kind = ", ".join(type(each).__name__ for each in several) or "nothing"
                raise ConvertError(f"loss gave {kind}; expected the loss of the batch, an NDArray of any shape.")
            return several

        return losses


def require_low(policy: Union[str, Policy]) -> Policy:
    """Return a policy that has low precision in it, and that can run here; PolicyError if it does not parse."""
    parsed = Policy.parse(policy)
    if not parsed.is_mixed:
        raise ConvertError(f"policy '{parsed}' is float32, so there is nothing to compare; give one such as 'O2'.")
    if parsed.compute_dtype == dtypes.BFLOAT16 and not runs_bfloat16():
        raise ConvertError(
            f"policy: it computes in bfloat16, and MXNet runs none on this processor ({read_processor().name}). "
            f"Compare on one with AVX-512, or with a policy of float16, which is emulated."
        )
    return parsed


def read_subject(net_or_model: Any, batches: Any, loss: Optional[Callable[..., Any]], ctx: Any) -> Subject:
    """Return what is to be compared; ConvertError if it is none, or does not fit together."""
    if isinstance(net_or_model, gluon.Block):
        _refuse("ctx", ctx, "is for a symbol with parameters; a Gluon net runs where its inputs are")
        return _of_net(net_or_model, batches, loss)
    _refuse("loss", loss, "is for a Gluon net; a symbol or Module has its loss heads")
    given = list(read_batches([batches] if isinstance(batches, Mapping) else batches, labels=True))
    if isinstance(net_or_model, mx.mod.Module):
        _refuse("ctx", ctx, "is for a symbol with parameters; a Module runs where it is bound")
        network: Network = BoundModule(net_or_model, given, len(given))
        return Subject(network, _has_losses(net_or_model.symbol, given, net_or_model.get_params()))
    try:
        symbol, args, aux = net_or_model
    except (TypeError, ValueError):
        raise ConvertError(
            f"net_or_model is a {type(net_or_model).__name__}; expected a Gluon net, a bound Module, or a tuple "
            f"(symbol, arg_params, aux_params). Of a BucketingModule give one bucket as a Module."
        ) from None
    network = Model(symbol, args, aux, given, ctx, len(given))
    return Subject(network, _has_losses(symbol, given, (args, aux)))


def _refuse(name: str, value: Any, why: str) -> None:
    if value is not None:
        raise ConvertError(f"{name} {why}. Leave {name} out.")


def _has_losses(symbol: Any, batches: Sequence[Mapping[str, Any]], params: Tuple[Any, Any]) -> bool:
    """Return whether a symbol has loss heads, and all batches what they need."""
    known = {*params[0], *params[1]}
    needed = [name for name in symbol.list_inputs() if name not in known]
    heads = any(is_loss_head(node) for node in to_graph(symbol).nodes)
    return heads and all(name in batch for batch in batches for name in needed)


def _of_net(net: gluon.Block, batches: Any, loss: Optional[Callable[..., Any]]) -> Subject:
    calls = [_arguments(batch) for batch in _listed(batches)]
    labels: List[Any] = []
    if loss is not None:
        if not callable(loss):
            raise ConvertError(f"loss is a {type(loss).__name__}; expected a function of the net's output and a label.")
        if [*roots(net)] != [net]:
            raise ConvertError(
                f"block '{net.name}' ({type(net).__name__}) is no HybridBlock, so it has no one graph that gradients "
                f"go through; give one of the HybridBlocks in it, or leave loss out."
            )
        if any(len(call) < 2 for call in calls):
            raise ConvertError("batches: a batch has no label for loss; give tuples of the net's inputs and a label.")
        labels, calls = [call[-1] for call in calls], [call[:-1] for call in calls]
    network = GluonNet(net, len(calls))
    with network.watched(), network.under(_FLOAT32), autograd.pause():
        for call in calls:
            net(*call)
    return Subject(network, loss is not None, loss, labels)


def _listed(batches: Any) -> List[Any]:
    """Return the batches of a net: of one, a list of it."""
    if isinstance(batches, (mx.nd.NDArray, tuple)):
        return [batches]
    if batches is None or isinstance(batches, (str, Mapping)) or not hasattr(batches, "__iter__"):
        raise ConvertError(
            f"batches is a {type(batches).__name__}; expected what the net is called with, an NDArray or a tuple of "
            f"them, or a list of such."
        )
    found = list(batches)
    if not found:
        raise ConvertError("batches is empty; give one batch at least.")
    return found


def _arguments(batch: Any) -> Tuple[Any, ...]:
    """Return the arguments of a net's call, of one batch."""
    arguments = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
    for each in arguments:
        if not isinstance(each, (mx.nd.NDArray, list, tuple)) and each is not None:
            raise ConvertError(
                f"batches: a batch has a {type(each).__name__}; expected NDArrays, as the net takes them."
            )
    return arguments
