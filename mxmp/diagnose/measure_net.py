"""Measure a Gluon net: its own calls, with the graph of each outermost HybridBlock looked into while it runs."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional

import mxnet as mx
from mxnet import autograd, gluon

from ..errors import ConvertError
from ..gluon.blocks import roots
from ..gluon.cache import as_input
from ..gluon.conversion import Conversion
from ..gluon.storage import contexts_of, refuse_cast
from ..gluon.trace import Trace, flat_arguments
from ..mxnet_private import blocks
from ..policy import Policy
from ..probe.largest_values import LargestValues
from ..probe.watched_gradients import WatchedGradients
from .batches import call_net, read_examples
from .kept import kept
from .magnitudes import GradientCounts, Magnitudes
from .networks.gluon_net import require_values
from .progress import shown
from .reading import losses_of
from .warn import warn_of_nans, warn_of_nonfinite

Make = Callable[[Trace], Any]
"""Makes what runs a traced graph: called with values by name, it returns the outputs in a list."""


def measure_ranges(net: gluon.Block, loader: Any, *, batches: Optional[int] = None) -> Dict[str, float]:
    """Return the largest magnitudes in a net; see `measure_ranges`."""
    made: List[LargestValues] = []

    def make(traced: Trace) -> LargestValues:
        made.append(LargestValues(traced.symbol, traced.params))
        return made[-1]

    with looked_into(net, make) as ctx, autograd.pause(train_mode=False):
        for example in shown("measuring ranges", read_examples(loader, batches, False, ctx), batches or loader):
            call_net(net, example.inputs)
    _require_called(net, made)
    warn_of_nans(made)
    return {name: max(e.found.get(name, 0.0) for e in made) for each in made for name in each.found}


def measure_gradients(
    net: gluon.Block, loss: Any, loader: Any, *, batches: Optional[int] = None
) -> Dict[str, Magnitudes]:
    """Return the gradients of the activations in a net by magnitude; see `measure_gradients`."""
    counts = GradientCounts()
    made: List[WatchedGradients] = []

    def make(traced: Trace) -> WatchedGradients:
        made.append(WatchedGradients(traced.symbol, traced.types, True, counts.add))
        return made[-1]

    if not callable(loss):
        raise ConvertError(f"loss is a {type(loss).__name__}; expected a function of the net's output and the label.")
    with looked_into(net, make) as ctx:
        if all(param.grad_req == "null" for param in net.collect_params().values()):
            raise ConvertError(f"block '{net.name}' has no parameter to train, so there are no gradients.")
        for example in shown("measuring gradients", read_examples(loader, batches, True, ctx), batches or loader):
            with autograd.record():
                losses = losses_of(loss, call_net(net, example.inputs), example.label)
            autograd.backward(losses)
            for each in made:
                each.raise_errors()
    _require_called(net, made)
    found = counts.found([name for each in made for name in each.outputs])
    warn_of_nonfinite(found)
    return found


@contextlib.contextmanager
def looked_into(net: gluon.Block, make: Make) -> Iterator[mx.Context]:
    """Have a net run in float32 by what ``make`` makes of its graphs, once for each; give the context to call it on.

    The net is as it was found after it; forward hooks on it are called as ever.
    """
    found = roots(net)
    require_values(net)
    with kept(net):
        for root in found:
            refuse_cast(root)
            runs: Dict[int, Any] = {}
            vars(root)[blocks.call_cached_op.name] = partial(_forward, Conversion(root, Policy()), runs, make)
            blocks.is_active.set(root, True)
        yield (contexts_of(net.collect_params().values()) or [mx.context.current_context()])[0]


def _forward(conversion: Conversion, runs: Dict[int, Any], make: Make, *args: Any) -> Any:
    """Run a block, which its conversion traces, on arrays."""
    args = tuple(map(as_input, args))
    traced = conversion.trace_for(args)
    run = runs.get(id(traced))
    if run is None:
        run = runs[id(traced)] = make(traced)
    arrays = flat_arguments(args).arrays
    ctx = arrays[0].ctx
    values = {symbol.name: array for symbol, array in zip(traced.inputs, arrays)}
    values.update((name, param.data(ctx)) for name, param in traced.params.items())
    return blocks.regroup(run(values), traced.formats[1])


def _require_called(net: gluon.Block, made: List[Any]) -> None:
    if not made:
        raise ConvertError(f"block '{net.name}': calling it called none of the HybridBlocks in it; measure these.")
