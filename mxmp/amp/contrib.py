"""The functions of ``mxnet.contrib.amp``, by their names and with their arguments, on mxmp's engine.

References:
    python/mxnet/contrib/amp/amp.py at tag 1.9.1.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import weakref
from types import MethodType
from typing import Any, Callable, ContextManager, Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx

from .. import symbol
from ..errors import ConvertError, TrainerError, a_type_of
from ..gluon import Trainer, precision
from ..gluon.adoption import policies_of, require_gluon_trainer
from ..gluon.api import as_symbol_block, convert, is_fixed, restore
from ..gluon.blocks import blocks_in, conversion_of, conversions_of, plain_class
from ..gluon.trace import MakingGraphs
from ..module import BucketingModule
from ..mxnet_private import made_with
from ..train.state_files import is_saved_by_mxmp
from .operators import AmpError, ListPolicy, list_policy

_LOG = logging.getLogger(__name__)

# HybridBlock's method that runs the graph of a hybridized net on arrays, and that of any SymbolBlock. Nets that run
# eagerly, and the trace of a net by symbols, do not come here (HybridBlock.forward in python/mxnet/gluon/block.py).
_CALL = "_call_cached_op"


# MXNet's error for an operator whose inputs have two dtypes (ElemwiseAttr in src/operator/elemwise_op_common.h,
# UNIFORM_TYPE_CHECK in src/operator/operator_common.h).
_DTYPES_DIFFER = re.compile(r"(?i)expected '?b?float(16|32)'?(,| v\.s\.) (got|given) '?b?float(16|32)")


class _Hook:
    """Replaces the method `_CALL` of the class HybridBlock after `init`, and converts nets when they are called."""

    def __init__(self, policy: ListPolicy) -> None:
        self.policy = policy
        self.original: Callable[..., Any] = getattr(mx.gluon.HybridBlock, _CALL)
        self.block_call = mx.gluon.Block.__call__
        self.load_states = mx.gluon.Trainer.load_states
        self.nets: weakref.WeakSet[mx.gluon.Block] = weakref.WeakSet()
        self.has_warned = False  # or, at the first scaled loss, had no reason to warn
        self._process = os.getpid()

    def __get__(self, net: Optional[mx.gluon.Block], owner: Any) -> Any:
        """Return the method of a net; a converted net gets MXNet's own method."""
        if net is None:
            return self
        return MethodType(self if plain_class(net) is type(net) else self.original, net)

    def __call__(self, net: mx.gluon.HybridBlock, *args: Any) -> Any:
        """Run a net, converted from its first call on."""
        # A worker of a DataLoader is a fork, in which contrib.amp's casts made any Dense fail (gluon-cv#1277).
        if os.getpid() == self._process and not is_fixed(net):
            with MakingGraphs.lock:  # threads of data parallel training call one net: one converts it, the others wait
                # A net with parts that the user converted stays as it is. Parts that ran by themselves join the whole.
                if conversion_of(net) is None and all(map(self.made, conversions_of(blocks_in(net)))):
                    convert(net, self.policy)
                    vars(net)["_mxmp_amp"] = _Member(net)
            if conversion_of(net) is not None:
                return net._call_cached_op(*args)
        return self.original(net, *args)

    def explaining(self) -> Callable[..., Any]:
        """Return Block's call, with an error that explains operators whose inputs have two dtypes."""

        @functools.wraps(self.block_call)
        def call(block: mx.gluon.Block, *args: Any) -> Any:
            try:
                return self.block_call(block, *args)
            except mx.MXNetError as e:
                if not _DTYPES_DIFFER.search(str(e)):
                    raise
                dtype = self.policy.compute_dtype
                raise AmpError(
                    f"block '{block.name}': an operator got inputs of two dtypes. Unlike contrib.amp's, this amp.init "
                    f"casts no inputs of eager operators. If net.cast({dtype!r}) was called, call mxmp.gluon.cast(net, "
                    f"{dtype!r}) in its place, which keeps outputs float32; or hybridize the block."
                ) from e

        return call

    def refusing(self) -> Callable[..., Any]:
        """Return ``load_states`` of MXNet's trainer, with an error for states that mxmp saved."""

        @functools.wraps(self.load_states)
        def load_states(trainer: mx.gluon.Trainer, fname: Any) -> Any:
            # Before MXNet tries: it sets up the kvstore first, and then the trainer cannot be initialized any more.
            if is_saved_by_mxmp(fname):
                raise TrainerError(
                    f"{fname}: a trainer of mxmp saved these states, which a trainer of MXNet cannot read; call "
                    f"amp.init_trainer(trainer) before trainer.load_states."
                )
            return self.load_states(trainer, fname)

        return load_states

    def made(self, conversion: Any) -> bool:
        """Return whether `init` made a conversion."""
        return conversion is not None and conversion.policy == self.policy  # a copied net has a copied policy


class _Member:
    """Registers a net that `init` converted, and each copy of it, so that `disable` restores them."""

    def __init__(self, net: mx.gluon.Block) -> None:
        self._net, hook = net, installed_hook()
        if hook is not None:
            hook.nets.add(net)

    def __reduce__(self) -> Any:
        return _Member, (self._net,)  # copy and pickle make the net first, and then its attributes


def installed_hook() -> Optional[_Hook]:
    """Return the hook that `init` installed, which holds all of its state."""
    hook = getattr(mx.gluon.HybridBlock, _CALL)
    return hook if isinstance(hook, _Hook) else None


def init(
    target_dtype: Any = "float16",
    target_precision_ops: Any = None,
    conditional_fp32_ops: Any = None,
    fp32_ops: Any = None,
) -> None:
    """Let every hybridized net run in mixed precision from its next call on.

    ``init`` replaces one attribute of ``HybridBlock``, the call of a hybridized net's graph, and no operator. Code that
    runs eagerly stays float32. ``Block.__call__`` and ``Trainer.load_states`` are replaced only to explain errors.

    Nets that were hybridized before are converted too, and SymbolBlocks are. They stay converted until `disable`. Nets
    that `mxmp.gluon.convert` converted, also to 'float32', stay as they are. Frozen blocks and nets in forked
    processes, such as the workers of a DataLoader, stay as they are too. On CPU contexts float16 is emulated.

    Args:
        target_dtype: 'float16' or 'bfloat16'.
        target_precision_ops: Operators to run in low precision; then no other matrix product or convolution does. None
            for all that gain from it.
        conditional_fp32_ops: (operator, attribute, list of values): operators to run in float32 where the attribute is
            given with one of these values.
        fp32_ops: Operators to run in float32, besides those that need it.

    Raises:
        AmpError: If an argument makes no sense, or `init` was called with others before.
    """
    policy = list_policy(
        target_dtype, target_precision_ops, fp32_ops, conditional_fp32_ops, argument="target_precision_ops"
    )
    hook = installed_hook()
    if hook is None:
        hook = _Hook(policy)
        setattr(mx.gluon.HybridBlock, _CALL, hook)
        mx.gluon.Block.__call__ = hook.explaining()
        mx.gluon.Trainer.load_states = hook.refusing()
        _LOG.info("nets that are hybridized run in %s from now on", policy.compute_dtype)
    elif hook.policy != policy:
        raise AmpError(f"amp.init was called before, with other arguments ({hook.policy}); call amp.disable first.")


def disable() -> None:
    """Undo `init`: the nets that it converted, and copies of them, run their float32 graphs again."""
    hook = installed_hook()
    if hook is not None:
        setattr(mx.gluon.HybridBlock, _CALL, hook.original)
        mx.gluon.Block.__call__ = hook.block_call
        mx.gluon.Trainer.load_states = hook.load_states
        for net in list(hook.nets):
            if hook.made(conversion_of(net)):
                restore(net)


def disable_casts() -> ContextManager[Any]:
    """Return a context manager in which converted nets run in float32: Apex's name of ``precision("float32")``.

    Weights that are stored in low precision keep their rounded values; `mxmp.gluon.restore` takes the masters.
    """
    return precision("float32")


def init_trainer(optimizer_or_trainer: mx.gluon.Trainer, loss_scale: Any = "auto") -> None:
    """Give a trainer loss scaling and exact skips: from now on it is an `mxmp.gluon.Trainer`.

    Only this object changes, not its class. Its optimizer keeps float32 masters for parameters in low precision.

    Args:
        optimizer_or_trainer: A ``mx.gluon.Trainer``, created before or after `init`.
        loss_scale: 'dynamic', a number or a `LossScale`; None for no scaling and no checks. 'auto' is 'dynamic' if
            `init` was called for float16. It is None for bfloat16, which has float32's range. To start at 65536, as
            contrib.amp does: ``mxmp.loss_scale.DynamicLossScale(init_scale=2.0**16)``.

    Raises:
        AmpError: If `init` was not called.
        TrainerError: If it is no trainer, or its kvstore updates before any check, or it has made a step with
            parameters in low precision.
        LossScaleError: If ``loss_scale`` is not one.
    """
    hook = installed_hook()
    if hook is None:
        raise AmpError("amp.init was not called, so no net runs in mixed precision; call it first, or amp.initialize.")
    require_gluon_trainer(optimizer_or_trainer, "init_trainer")
    # The parameters' own policy, which is the default of adopt, is not known before the first call of their net.
    Trainer.adopt(optimizer_or_trainer, hook.policy.loss_scale if str(loss_scale) == "auto" else loss_scale)


def scale_loss(
    loss: Any, optimizer_or_trainer: Any, loss_id: int = 0, delay_unscale: bool = True
) -> ContextManager[Any]:
    """Return a context manager that yields the loss, or the list of losses, times the loss scale.

    Args:
        loss: As for `mxmp.gluon.Trainer.scale_loss`.
        optimizer_or_trainer: A trainer that `init_trainer` or `initialize` has seen; or a list of
            all trainers whose parameters the loss depends on.
        loss_id: Number of the loss, below the ``num_losses`` of `initialize`.
        delay_unscale: An argument of Apex, without effect: gradients are unscaled by the step, by `unscale`, or where
            ``param.grad()`` is read. To accumulate them set ``grad_req='add'`` on the parameters.

    Raises:
        TrainerError: If a trainer is not initialized, or cannot scale a loss now.
    """
    owners = [require_trainer(owner, "scale_loss") for owner in as_list(optimizer_or_trainer)]
    if not owners:
        raise TrainerError("scale_loss: the list of trainers is empty.")
    hook = installed_hook()
    if hook is not None and not hook.has_warned:
        hook.has_warned = True
        if not hook.nets and not any(policies_of(owner._params) for owner in owners):
            _LOG.warning(
                "amp.init has converted no net so far: it reaches nets that are hybridized; call net.hybridize(), or "
                "mxmp.gluon.convert"
            )
    return owners[0].scale_loss(loss, *owners[1:], loss_id=loss_id)


def unscale(optimizer_or_trainer: Any) -> None:
    """Make ``param.grad()`` the true gradients, for clipping: `mxmp.gluon.Trainer.unscale`.

    Call it once, after the last backward. Gradients that were not finite make the step skip, also if they are clipped.

    Args:
        optimizer_or_trainer: A trainer that `init_trainer` or `initialize` has seen.

    Raises:
        TrainerError: If it has seen neither; or for a second call in a step; or before backward.
    """
    require_trainer(optimizer_or_trainer, "unscale").unscale()


def convert_symbol(
    sym: Any,
    target_dtype: Any = "float16",
    target_dtype_ops: Optional[Sequence[str]] = None,
    fp32_ops: Optional[Sequence[str]] = None,
    conditional_fp32_ops: Optional[Sequence[Any]] = None,
    excluded_sym_names: Optional[Sequence[str]] = None,
    data_names: Optional[Sequence[str]] = None,
    cast_optional_params: bool = False,
) -> Any:
    """Return a symbol converted to mixed precision; its outputs keep their names.

    Args:
        sym: A float32 network.
        target_dtype: 'float16' or 'bfloat16'.
        target_dtype_ops: Operators to run in it, any that have a kernel. No other matrix product or
            convolution then does. None for all that gain from it.
        fp32_ops: Operators to run in float32, besides those that need it.
        conditional_fp32_ops: (operator, attribute, list of values): operators to run in float32
            where the attribute is given with one of these values.
        excluded_sym_names: Names of operators in ``sym`` to run in float32.
        data_names: Names of the inputs; all other variables are parameters. Unless given, these are
            known by their names ('weight', 'bias', ...).
        cast_optional_params: Whether to declare parameters in ``target_dtype`` that only operators
            in low precision read, so that they are not cast at each forward pass.

    Raises:
        AmpError: If an argument makes no sense; it names it.
        ConvertError: If ``sym`` is no symbol, or cannot be converted; it names the node.
        PolicyError: If MXNet has no low precision kernel for an operator in ``target_dtype_ops``.
    """
    lists = target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, cast_optional_params
    return symbol.convert_symbol(sym, list_policy(*lists, [sym]), data_names=data_names)


def convert_model(
    sym: Any,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    target_dtype: Any = "float16",
    target_dtype_ops: Optional[Sequence[str]] = None,
    fp32_ops: Optional[Sequence[str]] = None,
    conditional_fp32_ops: Optional[Sequence[Any]] = None,
    excluded_sym_names: Optional[Sequence[str]] = None,
    cast_optional_params: bool = False,
) -> Tuple[Any, Dict[str, Any], Dict[str, Any]]:
    """Return a model converted to mixed precision; the dicts given are not changed.

    Args:
        sym: A float32 network.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states by name.
        target_dtype: As for `convert_symbol`, and so are the others.
        target_dtype_ops: As above.
        fp32_ops: As above.
        conditional_fp32_ops: As above.
        excluded_sym_names: As above.
        cast_optional_params: Whether to store parameters in ``target_dtype`` that only operators in
            low precision read. Values out of its range are clamped and logged.

    Returns:
        The symbol, its arguments and its auxiliary states.

    Raises:
        AmpError: As `convert_symbol`, and so are the others.
        ConvertError: As above; also if the parameters do not fit.
        PolicyError: As above.
    """
    policy = list_policy(
        target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, cast_optional_params, [sym]
    )
    model = symbol.convert_model(sym, arg_params, aux_params, policy)
    for change in model.changes:  # contrib.amp has no report: there such values are inf and 0
        _LOG.warning(
            "parameter '%s': %d values clamped to the range of %s, %d became zero",
            change.name,
            change.clamped,
            policy.compute_dtype,
            change.underflowed,
        )
    return model.symbol, model.arg_params, model.aux_params


def convert_hybrid_block(
    block: mx.gluon.HybridBlock,
    target_dtype: Any = "float16",
    target_dtype_ops: Optional[Sequence[str]] = None,
    fp32_ops: Optional[Sequence[str]] = None,
    conditional_fp32_ops: Optional[Sequence[Any]] = None,
    excluded_sym_names: Optional[Sequence[str]] = None,
    ctx: Any = None,
    cast_optional_params: bool = False,
) -> mx.gluon.SymbolBlock:
    """Return a SymbolBlock with a copy of a block's parameters, in mixed precision.

    It infers and trains; on CPU contexts float16 is emulated. To convert a net in place, with its
    own parameters, call `mxmp.gluon.convert`.

    Args:
        block: Hybridized and called once, or a SymbolBlock.
        target_dtype: As for `convert_symbol`, and so are the next four.
        target_dtype_ops: As above.
        fp32_ops: As above.
        conditional_fp32_ops: As above.
        excluded_sym_names: As above.
        ctx: The context or contexts of the new parameters; those of the block unless given.
        cast_optional_params: As for `convert_model`.

    Raises:
        AmpError: As `convert_symbol`, and so are the others.
        ConvertError: As above; also if the block has no graph yet.
        PolicyError: As above.
    """
    lists = target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, cast_optional_params
    copy = as_symbol_block(block, ctx)
    return convert(copy, list_policy(*lists, [copy._cached_graph[1]]))


def convert_bucketing_module(
    bucketing_mod: mx.mod.BucketingModule,
    target_dtype: Any = "float16",
    target_dtype_ops: Optional[Sequence[str]] = None,
    fp32_ops: Optional[Sequence[str]] = None,
    conditional_fp32_ops: Optional[Sequence[Any]] = None,
    excluded_sym_names: Optional[Sequence[str]] = None,
    cast_optional_params: bool = False,
) -> BucketingModule:
    """Return a BucketingModule with copies of a module's parameters, in mixed precision.

    It is an `mxmp.module.BucketingModule`, to be bound and used as MXNet's: it infers and trains,
    and buckets that come later are converted too.

    Args:
        bucketing_mod: Bound, with its parameters.
        target_dtype: As for `convert_symbol`, and so are the others.
        target_dtype_ops: As above.
        fp32_ops: As above.
        conditional_fp32_ops: As above.
        excluded_sym_names: As above; names in any bucket.
        cast_optional_params: Whether parameters are stored in ``target_dtype`` in executors that
            only operators in low precision read.

    Raises:
        AmpError: As `convert_symbol`.
        ConvertError: If ``bucketing_mod`` is no bound BucketingModule with parameters.
    """
    lists = target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, cast_optional_params
    if not (
        isinstance(bucketing_mod, mx.mod.BucketingModule)
        and bucketing_mod.binded
        and bucketing_mod.params_initialized
    ):
        raise ConvertError(
            f"bucketing_mod is {a_type_of(bucketing_mod)}; expected a BucketingModule that is bound and has "
            "parameters: call bind and init_params first."
        )
    symbols = {key: bucket.symbol for key, bucket in bucketing_mod._buckets.items()}
    # Copies: the two modules train apart.
    args, aux = ({name: array.copy() for name, array in arrays.items()} for arrays in bucketing_mod.get_params())
    return BucketingModule.load_dict(
        symbols,
        bucketing_mod._sym_gen,
        bucketing_mod._default_bucket_key,
        args,
        aux,
        policy=list_policy(*lists, symbols.values()),
        logger=bucketing_mod.logger,
        **made_with(bucketing_mod),
    )


def require_trainer(trainer: Any, call: str) -> Trainer:
    """Return a trainer that was initialized, or raise a TrainerError."""
    if isinstance(trainer, Trainer):
        return trainer
    require_gluon_trainer(trainer, call)
    raise TrainerError(f"{call}: the trainer was not initialized; call amp.init_trainer(trainer) first.")


def as_list(value: Any) -> List[Any]:
    """Return a list or tuple as a list, anything else as the list of it."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
