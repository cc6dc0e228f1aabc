"""init, disable and disable_casts: convert hybridized nets when they run, by one hook on HybridBlock."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, Optional, Set

import mxnet as mx
from mxnet import MXNetError, gluon

from .. import dtypes
from ..arrays import leaves
from ..gluon.blocks import blocks_in, conversion_of, conversions_of, descendants
from ..gluon.conversion import Conversion
from ..mxnet_private import blocks
from ..policy import Policy
from ..train.recorded import came_through_graph
from .operators import AmpError
from .request import Request, make_request

_LOG = logging.getLogger(__name__)
_NAME = blocks.call_cached_op.name

# What MXNet says of an operator whose inputs have two dtypes (ElemwiseAttr in src/operator/elemwise_op_common.h,
# UNIFORM_TYPE_CHECK in src/operator/operator_common.h).
_DTYPES_DIFFER = re.compile(r"(?i)expected '?(b?float(?:16|32))'?(?:,| v\.s\.) (?:got|given) '?(b?float(?:16|32))")
_CAST = (
    "block '{0}': an operator that runs eagerly got {1} and float32 together. amp.init casts no inputs of eager "
    "operators, where contrib.amp patches them to do so. If the {1} comes from net.cast('{1}'), call "
    "mxmp.gluon.cast(net, '{1}') in its place, which stores weights in {1} and keeps outputs float32; or hybridize the "
    "block."
)


class EagerDtypeError(AmpError, MXNetError):  # type: ignore[misc]
    """An operator that runs eagerly met two dtypes; as an MXNetError it is caught where MXNet's own would be."""


class _Conversion(Conversion):
    """The conversion of a net that the hook of `init` has converted."""

    def __init__(self, net: gluon.HybridBlock, request: Request) -> None:
        self.request = request
        super().__init__(net, request.base())

    def hybrid_forward(self, F: Any, *args: Any, **params: Any) -> Any:
        """Give up a net that is not hybridized any more, which runs eagerly."""
        if F is not mx.nd:
            return super().hybrid_forward(F, *args, **params)
        self.remove()
        return self.net.hybrid_forward(F, *args, **params)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Take the state of a copied net, which `disable` gives back as it does the others."""
        super().__setstate__(state)
        present = installed_hook()
        if present is not None:
            with present.lock:
                present.conversions.add(self)

    def policy_for(self, symbol: Any) -> Policy:
        """Return the policy for a graph: with overrides for what it has."""
        return self.request.policy(symbol)


class _Hook:
    """The hook in place of HybridBlock's method, with the conversions that it made."""

    def __init__(self, request: Request, original: Callable[..., Any]) -> None:
        self.request = request
        self.original = original
        self.excluded: Set[int] = set()  # ids of the nets within `disable_casts`, which run in float32
        self._process = os.getpid()
        self.lock = threading.RLock()
        self.conversions: weakref.WeakSet[_Conversion] = weakref.WeakSet()
        self._looked = False
        self._call_block = gluon.Block.__call__

    def install(self) -> None:
        """Put a method in the place of HybridBlock's, which holds this object, and one in that of Block's call."""

        def call(net: gluon.HybridBlock, *args: Any) -> Any:
            return self.call(net, *args)

        call.hook = self  # type: ignore[attr-defined]
        setattr(gluon.HybridBlock, _NAME, call)

        @functools.wraps(self._call_block)
        def call_block(block: gluon.Block, *args: Any) -> Any:
            try:
                return self._call_block(block, *args)
            except MXNetError as e:
                match = _DTYPES_DIFFER.search(str(e))
                if not match:
                    raise
                low = next(dtype for dtype in map(str.lower, match.groups()) if dtype != dtypes.FLOAT32)
                raise EagerDtypeError(_CAST.format(block.name, low)) from e

        gluon.Block.__call__ = call_block

    def remove(self) -> None:
        """Put the methods back, and undo the conversions that are still installed."""
        setattr(gluon.HybridBlock, _NAME, self.original)
        gluon.Block.__call__ = self._call_block
        for conversion in list(self.conversions):
            if conversion_of(conversion.net) is conversion:
                conversion.remove()

    def call(self, net: gluon.HybridBlock, *args: Any) -> Any:
        """Run a hybridized net, converted from its first call on."""
        if conversion_of(net) is None and self._wants(net):
            with self.lock:
                if conversion_of(net) is None:
                    conversion = _Conversion(net, self.request)
                    conversion.install()
                    self.conversions.add(conversion)
            return blocks.call_cached_op(net, *args)
        return self.original(net, *args)

    def _wants(self, net: gluon.HybridBlock) -> bool:
        """Return whether a net is to be converted: not in a forked process, nor if parts were converted by hand."""
        by_hand = (each for each in conversions_of(descendants(net)) if not isinstance(each, _Conversion))
        return os.getpid() == self._process and id(net) not in self.excluded and not any(by_hand)

    def warn_if_idle(self, loss: Any) -> None:
        """Log that no net runs in mixed precision, if that is so and no cached graph gave the first loss."""
        if self._looked:
            return
        self._looked = True  # at the first loss alone: it takes as long as what was recorded of it is large
        if not self.conversions and not any(map(came_through_graph, leaves(loss))):
            _LOG.warning(
                "amp.init has converted no net so far: it reaches nets that are hybridized; call net.hybridize(), or "
                "mxmp.gluon.convert"
            )


def init(
    target_dtype: Any = "float16",
    target_precision_ops: Any = None,
    conditional_fp32_ops: Any = None,
    fp32_ops: Any = None,
) -> None:
    """Let every hybridized net run in mixed precision from its next call on.

    It replaces one attribute of ``HybridBlock``, the call of a hybridized net's graph, and no
    operator: what runs eagerly stays float32. ``Block.__call__`` is replaced to explain errors alone.
    Nets that were hybridized before are converted as well, and SymbolBlocks; nets that
    `mxmp.gluon.convert` converted stay as they are, and so do nets in forked processes, such as the
    workers of a DataLoader. On CPU contexts float16 is emulated. `disable` undoes it.

    Args:
        target_dtype: 'float16' or 'bfloat16'.
        target_precision_ops: Operators to run in low precision, and no other matrix products and
            convolutions. None for all that gain from it.
        conditional_fp32_ops: (operator, attribute, list of values): operators to run in float32
            where the attribute is given with one of these values.
        fp32_ops: Operators to run in float32, besides those that need it.

    Raises:
        AmpError: If an argument makes no sense, or `init` was called with others before.
    """
    request = make_request(
        target_dtype, target_precision_ops, fp32_ops, conditional_fp32_ops, target_argument="target_precision_ops"
    )
    present = installed_hook()
    if present is None:
        _Hook(request, getattr(gluon.HybridBlock, _NAME)).install()
        _LOG.info("nets that are hybridized run in %s from now on", request.dtype)
    elif present.request != request:
        raise AmpError(f"amp.init was called before, with other arguments ({present.request}); call amp.disable first.")


def disable() -> None:
    """Undo `init`: the nets that it converted run their float32 graphs again; nothing without `init`."""
    hook = installed_hook()
    if hook is not None:
        hook.remove()


@contextlib.contextmanager
def disable_casts(*nets: gluon.Block) -> Iterator[None]:
    """Return a context manager within which nets run in float32; they are traced anew after it.

    Use it between steps, to evaluate in float32 for example.

    Args:
        *nets: Converted by `init`, `initialize` or `mxmp.gluon.convert`. Apex needs none, because its
            casts are those of the process.

    Raises:
        AmpError: If there is none.
    """
    if not nets:
        raise AmpError("disable_casts: give the nets that are to run in float32: disable_casts(net).")
    hook = installed_hook()
    blocks = blocks_in(*nets)
    found = conversions_of(blocks)
    excluded = set() if hook is None else set(map(id, blocks)) - hook.excluded
    for conversion in found:
        conversion.remove()
    if hook is not None:
        hook.excluded |= excluded
    try:
        yield
    finally:
        if hook is not None:
            hook.excluded -= excluded  # what init converts, it converts at the next call
        for conversion in found:
            if not isinstance(conversion, _Conversion):
                conversion.install()


def installed_hook() -> Optional[_Hook]:
    """Return the hook that `init` installed, which is the only place where its state is kept."""
    return getattr(getattr(gluon.HybridBlock, _NAME), "hook", None)
