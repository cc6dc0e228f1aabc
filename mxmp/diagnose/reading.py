"""What `compare`, `explain` and `find_nonfinite` are given to look at: a network of any front, read in one way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, FrozenSet, Mapping, Optional, Sequence, Union

import mxnet as mx
from mxnet import autograd, gluon

from .. import dtypes
from ..devices.processor import read_processor
from ..devices.speed import runs_bfloat16
from ..errors import ConvertError, LossScaleError, mxnet_reason
from ..gluon.blocks import blocks_in, conversions_of
from ..module import Module
from ..mxnet_private import modules
from ..policy import Policy
from ..probe.step_replay import flat
from ..symbol import ConvertedModel
from ..symbol.arguments import require_symbol
from .batches import inputs_of
from .networks.gluon_net import require_values

LossFunction = Callable[..., Any]

_TAKEN = (
    "a Gluon net, a Module or BucketingModule of MXNet or mxmp that is bound, a mxmp.symbol.ConvertedModel, or a tuple "
    "(symbol, arg_params, aux_params)"
)
_DEFAULT = "O1"


@dataclass(frozen=True)
class Subject:
    """A network of any front: a net, a Module, or a symbol with its parameters.

    Attributes:
        net: The Gluon net.
        module: The Module; of a BucketingModule that of the bucket which ran last.
        symbol: The symbol, of a Module too.
        args: Its arguments.
        aux: Its auxiliary states.
        policy: The policy that it is converted by; None if it is not converted.
        heads: The names of Custom operators that are loss heads.
        buckets: The BucketingModule that the module is of.
    """

    net: Optional[gluon.Block] = None
    module: Optional[mx.mod.Module] = None
    symbol: Any = None
    args: Mapping[str, Any] = None  # type: ignore[assignment]
    aux: Mapping[str, Any] = None  # type: ignore[assignment]
    policy: Optional[Policy] = None
    heads: FrozenSet[str] = frozenset()
    buckets: Optional[mx.mod.BucketingModule] = None

    def of_bucket(self, keys: Sequence[Any]) -> Subject:
        """Return the network of the bucket whose ``keys`` batches have, all the same; without keys, this.

        The BucketingModule stays at its present bucket.

        Raises:
            ConvertError: If the batches are of several buckets, or of one that is not bound.
        """
        keys = [] if self.buckets is None else list(dict.fromkeys(key for key in keys if key is not None))
        if not keys:
            return self
        bound = modules.buckets(self.buckets)
        if len(keys) > 1:
            named = ", ".join(map(repr, keys))
            raise ConvertError(f"batches are of the buckets {named}; give those of one bucket at a time.")
        if keys[0] not in bound:
            raise ConvertError(
                f"batches are of bucket {keys[0]!r}, which is not bound; run one of them by the module first, or give "
                f"batches of {', '.join(map(repr, bound))}."
            )
        module = bound[keys[0]]
        if module is self.module:
            return self
        modules.sync_params_from_devices(module)  # which hold what another bucket's step has written
        return replace(_of_module(module), policy=self.policy, buckets=self.buckets)

    def inputs(self) -> Dict[str, str]:
        """Return the dtypes of a symbol's inputs by name, in the order in which arrays without names are taken."""
        module = self.module
        order = [] if module is None else [*module.data_names, *(module.label_names or ())]
        return inputs_of(self.symbol, {*self.args, *self.aux}, order)

    def policy_or(self, given: Union[None, str, Policy]) -> Policy:
        """Return the policy to look at it under: that given, its own, or 'O1', in this order.

        Raises:
            PolicyError: If the policy given does not parse.
            ConvertError: If it computes in bfloat16, which MXNet does not run on this processor.
        """
        policy = Policy.parse(given) if given is not None else self.policy or Policy.parse(_DEFAULT)
        if dtypes.BFLOAT16 in (policy.compute_dtype, policy.param_dtype) and not runs_bfloat16():
            raise ConvertError(
                f"policy: it computes in bfloat16, and MXNet runs none on this processor ({read_processor().name}). "
                f"Take one with AVX-512, or a policy of float16, which is emulated."
            )
        return policy


def read_subject(given: Any, loss: Any = None, ctx: Any = None) -> Subject:
    """Return a network that a user gives; ``loss`` and ``ctx`` are checked for whether they go with it.

    Raises:
        ConvertError: If it is none, or has no values; or if ``loss`` or ``ctx`` is not for it.
    """
    if isinstance(given, gluon.Block):
        _refuse("ctx", ctx, "is for a symbol with parameters; a Gluon net runs where its inputs are")
        if loss is not None and not callable(loss):
            raise ConvertError(f"loss is a {type(loss).__name__}; expected a function of the net's output and a label.")
        require_values(given)
        policies = [each.policy for each in conversions_of(blocks_in(given))]
        return Subject(given, policy=next((each for each in policies if each.is_mixed), (*policies, None)[0]))
    _refuse("loss", loss, "is for a Gluon net; a symbol or Module has its loss heads")
    if isinstance(given, (mx.mod.Module, mx.mod.BucketingModule)):
        _refuse("ctx", ctx, "is for a symbol with parameters; a Module runs where it is bound")
        return _of_module(given)
    own = given.decisions.policy if isinstance(given, ConvertedModel) else None
    parts = tuple(given) if isinstance(given, (ConvertedModel, tuple, list)) else ()
    if len(parts) != 3 or not isinstance(parts[0], mx.sym.Symbol):
        found = f"{type(given).__name__} of {len(parts)}" if parts else type(given).__name__
        raise ConvertError(f"net_or_model is a {found}; expected {_TAKEN}.")
    for name, part in zip(("arg_params", "aux_params"), parts[1:]):
        if not isinstance(part, Mapping):
            raise ConvertError(
                f"net_or_model: {name} is a {type(part).__name__}; expected a dict by name, {{}} for none."
            )
    return Subject(symbol=require_symbol(parts[0]), args=parts[1], aux=parts[2], policy=own)


def _of_module(module: Any) -> Subject:
    if not (module.binded and module.params_initialized):
        raise ConvertError(f"the {type(module).__name__} is not bound, or has no parameters; call bind, set_params.")
    args, aux = module.get_params()
    buckets = module if isinstance(module, mx.mod.BucketingModule) else None
    module = module if buckets is None else modules.current(buckets)
    policy, heads = (module.policy, module._loss_heads) if isinstance(module, Module) else (None, frozenset())
    return Subject(module=module, symbol=module.symbol, args=args, aux=aux, policy=policy, heads=heads, buckets=buckets)


def _refuse(name: str, value: Any, why: str) -> None:
    if value is not None:
        raise ConvertError(f"{name} {why}. Leave {name} out.")


def require_scale(scale: Any) -> float:
    """Return a loss scale; LossScaleError unless it is positive and finite."""
    is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    if not is_number or not 0 < scale < float("inf"):
        raise LossScaleError(f"loss_scale is {scale!r}; expected a positive and finite number.")
    return float(scale)


def losses_of(loss: LossFunction, output: Any, label: Any) -> Sequence[Any]:
    """Return the losses of a batch, NDArrays; ConvertError if the loss fails or gives something else."""
    try:
        found = loss(output, label)
    except (mx.MXNetError, ValueError) as e:  # ValueError is that of a reshape
        labelled = "no label" if label is None else f"a label of shape {_shape(label)}"
        shapes = f"an output of shape {_shape(output)} and {labelled}"
        raise ConvertError(f"batches: the loss fails on {shapes}: {mxnet_reason(e)}") from e
    several = list(flat(found))
    if not several or not all(isinstance(each, mx.nd.NDArray) for each in several):
        kind = ", ".join(type(each).__name__ for each in several) or "nothing"
        raise ConvertError(f"loss gave {kind}; expected the loss of the batch, an NDArray of any shape.")
    return several


def _shape(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_shape, value))})"
    return str(getattr(value, "shape", value))


def run_backward(losses: Sequence[Any], train: bool = True) -> None:
    """Run backward from the losses of a batch."""
    try:
        autograd.backward(list(losses), train_mode=train)
    except mx.MXNetError as e:
        raise ConvertError(f"gradients: MXNet cannot run the network backward: {mxnet_reason(e)}") from e
