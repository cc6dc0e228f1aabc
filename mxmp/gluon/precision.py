"""Context manager ``precision``: a region of float32 or low precision, in ``hybrid_forward`` or around a call."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Callable, Optional, TypeVar

import mxnet as mx

from .. import dtypes
from ..errors import DtypeError, PolicyError
from ..mxnet_private import attr_scope, leave_attr_scope, scope_attrs
from ..passes.attributes import PRECISION_ATTR
from ..passes.decide import LOW

POLICY = "policy"  # where the net's policy decides, as outside of all regions

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LAZY = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
_KNOWN = (dtypes.FLOAT32, LOW, POLICY, *dtypes.LOW_PRECISION)


class precision(contextlib.ContextDecorator):
    """A region whose operators run in float32, or in low precision: for ``with``, or as a decorator.

    Within ``hybrid_forward`` it marks the operators that are created inside, which conversion reads;
    it overrules every other setting of the policy. Around the call of a converted net it holds for
    that call: the net has a graph for each kind of region. Regions nest, and the innermost decides.
    One object may be entered again and again, also within itself. On what is not converted it
    changes nothing. A net that is not converted, but hybridized, keeps for its converted blocks the
    region that it was first called in.

    In a float32 region a converted net whose operators are then all float32, parameters included
    (no 'O2'), is run under ``autograd.record`` as it was written, operator by operator: MXNet has no
    second derivatives through casts and cached graphs. So a gradient penalty trains::

        with autograd.record():
            with mxmp.gluon.precision("float32"):
                score = critic(x)
                (slope,) = autograd.grad(score, [x], create_graph=True, retain_graph=True)
                loss = criterion(score) + slope.square().mean()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()

    MXNet 1.9.1 has second derivatives for few operators: ``batch_dot``, ``elemwise_add``, adding a scalar,
    ``transpose`` and functions of one array (``tanh``, ``sigmoid``, ``exp``, ``log``, ``sqrt``, ``square``, ``abs``,
    ``sin``, ...). A cached graph has none, and so a hybridized or converted net outside of such a region; nor has
    Convolution. Those of FullyConnected are right in the last layer alone, likewise of Dropout and clip
    (FullyConnectedGradGradCompute in src/operator/nn/fully_connected-inl.h fills a part with 0); those of relu can end
    the process.

    A function that is decorated must run when it is called: no generator, no coroutine.

    Args:
        dtype: 'float32'; 'low' for the policy's compute dtype, or that dtype by name (which is an
            error under a policy with another one); or 'policy', where the policy decides again as
            outside of any region.

    Raises:
        DtypeError: If it is no dtype.
        PolicyError: If it is another dtype than these, or what is decorated is a generator or coroutine.

    Example::

        def hybrid_forward(self, F, x):
            x = self.body(x)
            with mxmp.gluon.precision("float32"):
                return F.broadcast_div(x, F.sum(x, axis=1, keepdims=True))
    """

    def __init__(self, dtype: str) -> None:
        try:
            name = dtype if dtype in (LOW, POLICY) else dtypes.canonical(dtype)
        except DtypeError as e:
            raise DtypeError(f"precision({dtype!r}): {e}") from e
        if name not in _KNOWN:
            raise PolicyError(f"precision({dtype!r}): expected one of {', '.join(_KNOWN)}.")
        self._region = name

    def __enter__(self) -> precision:
        # A scope for each entry, since AttrScope remembers one outer scope only. MXNet holds the
        # current one for each thread, so that this object has no state.
        scope = mx.AttrScope().__enter__()
        scope_attrs(scope).pop(PRECISION_ATTR, None)  # its own copy of what the outer scopes set
        if self._region != POLICY:
            scope_attrs(scope)[PRECISION_ATTR] = self._region
        return self

    def __exit__(self, kind: Any, error: Any, stack: Any) -> None:
        leave_attr_scope(kind, error, stack)

    def __call__(self, func: _Function) -> _Function:
        """Return a function that runs in this region."""
        if any(is_lazy(func) for is_lazy in _LAZY):
            name = getattr(func, "__name__", func)
            raise PolicyError(
                f"precision({self._region!r}): {name!r} is a generator or coroutine function, which runs late; "
                "open the region within it, with no yield or await inside."
            )
        return super().__call__(func)


def current_region() -> Optional[str]:
    """Return the precision of the innermost region, None outside of regions."""
    scope = attr_scope()
    return None if scope is None else scope_attrs(scope).get(PRECISION_ATTR)
