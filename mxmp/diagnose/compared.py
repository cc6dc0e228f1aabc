"""What `compare` runs: a network that has noted batches, and the losses whose gradients are compared."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Dict, List, Mapping, Optional, Sequence

import mxnet as mx
from mxnet import autograd

from .. import dtypes
from ..errors import ConvertError
from ..gluon.blocks import roots
from ..gluon.calls import NetCalls
from ..mxnet_private import blocks
from ..passes.scale_loss import is_loss_head
from ..policy import Policy
from ..probe.gradient_errors import Loss
from ..symbol.inference import to_graph
from .batches import Example, call_net, some_batches
from .networks.gluon_net import GluonNet
from .networks.network import Network
from .networks.symbols import BoundModule, Model
from .reading import LossFunction, Subject, losses_of, run_backward

_FLOAT32 = Policy.parse("float32")
_CONVERTED_TO_FLOAT32 = Policy.parse("O1", names={"*": dtypes.FLOAT32})


@dataclass(frozen=True)
class Compared:
    """A network that has noted batches.

    Attributes:
        network: The network.
        has_losses: Whether gradients can be compared.
        loss: A function of a net's output and a label, None of a symbol.
        labels: The label of each batch, for that function.
        gradients: Of each call of a HybridBlock in a plain Block, the gradients of its outputs in float32, instead;
            none where the net does not record the call.
    """

    network: Network
    has_losses: bool
    loss: Optional[LossFunction] = None
    labels: Sequence[Any] = ()
    gradients: Sequence[Sequence[Any]] = ()

    def loss_of(self, number: int, out_format: Any) -> Optional[Loss]:
        """Return what gives the losses of a graph's outputs for a batch, by its number; None where loss heads do."""
        loss = self.loss
        if loss is None:
            return None
        if self.gradients:  # whose sum of products with the outputs has these gradients
            given = [gradient.as_nd_ndarray() for gradient in self.gradients[number]]
            return lambda outputs: [output * gradient for output, gradient in zip(outputs, given or repeat(0))]
        return lambda outputs: losses_of(loss, blocks.regroup(_as_of_net(outputs), out_format), self.labels[number])


def _as_of_net(outputs: List[Any]) -> List[Any]:
    """Return the outputs of a graph as those of a Gluon net: arrays of ``mx.np`` after ``npx.set_np()``."""
    return [output.as_np_ndarray() for output in outputs] if mx.util.is_np_array() else outputs


def read_compared(subject: Subject, batches: Any, loss: Optional[LossFunction], ctx: Any) -> Compared:
    """Return what is to be compared; ConvertError if the batches do not fit the network."""
    if subject.net is not None:
        examples = [each.for_net(loss is not None).beside(subject.net) for each in some_batches(batches)]
        return _of_net(subject.net, examples, loss)
    read = list(some_batches(batches))
    subject = subject.of_bucket([each.bucket for each in read])
    names = subject.inputs()
    given = [each.by_name(names) for each in read]
    if subject.module is not None:
        network: Network = BoundModule(subject.module, given, len(given))
    else:
        network = Model(subject.symbol, subject.args, subject.aux, given, ctx, len(given))
    return Compared(network, _has_losses(subject, given))


def _has_losses(subject: Subject, batches: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a symbol has loss heads, and all batches what they need."""
    known = {*subject.args, *subject.aux}
    needed = [name for name in subject.symbol.list_inputs() if name not in known]
    heads = any(is_loss_head(node) for node in to_graph(subject.symbol).nodes)
    return heads and all(name in batch for batch in batches for name in needed)


def _of_net(net: Any, examples: Sequence[Example], loss: Optional[LossFunction]) -> Compared:
    network = GluonNet(net, len(examples))
    if loss is not None and not all(example.has_label for example in examples):
        raise ConvertError("batches: a batch has no label for loss; give tuples of the net's inputs and a label.")
    labels = [example.label for example in examples]
    if loss is not None and [*roots(net)] != [net]:
        return Compared(network, True, loss, labels, _gradients_between(network, net, examples, loss))
    with network.watched(), network.under(_FLOAT32), autograd.pause():
        for example in examples:
            call_net(net, example.inputs, without_loss=loss is None)
    return Compared(network, loss is not None, loss, labels)


def _gradients_between(
    network: GluonNet, net: Any, examples: Sequence[Example], loss: LossFunction
) -> List[Sequence[Any]]:
    """Return the gradients of the outputs of each call that is noted of a HybridBlock in a plain Block, in float32.

    They are those of a run in inference: dropout drops nothing, and no random number is drawn.
    """
    found: Dict[int, List[Sequence[Any]]] = defaultdict(list)
    with network.watched(), network.under(_CONVERTED_TO_FLOAT32):
        for example in examples:
            calls = NetCalls.watching(net)
            with autograd.record(train_mode=False):
                losses = losses_of(loss, call_net(net, example.inputs), example.label)
            run_backward(losses, train=False)
            for call in calls.noted:
                found[id(call.net)].append([zero.grad.copy() for zero in call.zeros])
    return [found[id(block)].pop(0) if recorded else () for block, recorded in network.called]
