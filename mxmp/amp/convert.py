"""Conversions with contrib.amp's arguments: of symbols, models, hybrid blocks and bucketing modules."""

from __future__ import annotations

import logging
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx

from .. import symbol
from ..arrays import to_float32
from ..errors import ConvertError
from ..gluon.conversion import Conversion
from ..gluon.storage import as_stored
from ..module import BucketingModule
from ..mxnet_private import blocks, made_with, modules, parameters
from ..passes import EraseCasts
from ..symbol import from_graph, to_graph
from .request import Request, make_request

_LOG = logging.getLogger(__name__)

Model = Tuple[Any, Dict[str, Any], Dict[str, Any]]
"""A symbol, its arguments and its auxiliary states."""


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
    request = make_request(
        target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, cast_optional_params
    )
    _require(sym, mx.sym.Symbol, "sym")
    request.require_excluded([sym])
    return symbol.convert_symbol(sym, request.policy(sym), data_names=data_names)


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
) -> Model:
    """Return a model converted to mixed precision; the dicts given are not changed.

    Args:
        sym: A float32 network.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states, likewise.
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
    request = make_request(
        target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, cast_optional_params
    )
    _require(sym, mx.sym.Symbol, "sym")
    request.require_excluded([sym])
    found = symbol.convert_model(sym, arg_params, aux_params, request.policy(sym))
    for change in found.changes:
        text = "parameter '%s': %d values clamped to %s's range, %d became zero"
        _LOG.warning(text, change.name, change.clamped, request.dtype, change.underflowed)
    return found.symbol, found.arg_params, found.aux_params


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
    request = make_request(
        target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, cast_optional_params
    )
    _require(block, mx.gluon.HybridBlock, "block")
    graph = blocks.cached_graph(block)
    if not graph:
        raise ConvertError(f"block '{block.name}' has no graph yet; hybridize it and run one batch, then convert it.")
    inputs, sym = graph
    sym = from_graph(EraseCasts()(to_graph(sym)).graph, sym)
    request.require_excluded([sym])
    result = _copy(block, inputs, sym, ctx)
    _Conversion(result, request.policy(sym)).install()
    return result


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
    request = make_request(
        target_dtype, target_dtype_ops, fp32_ops, conditional_fp32_ops, excluded_sym_names, cast_optional_params
    )
    _require(bucketing_mod, mx.mod.BucketingModule, "bucketing_mod")
    if not (bucketing_mod.binded and bucketing_mod.params_initialized):
        raise ConvertError("bucketing_mod has no parameters yet; call bind and init_params first.")
    symbols = {key: bucket.symbol for key, bucket in modules.buckets(bucketing_mod).items()}
    request.require_excluded(symbols.values())
    params = [{name: array.copy() for name, array in each.items()} for each in bucketing_mod.get_params()]
    options = {**made_with(bucketing_mod), "request": request, "logger": bucketing_mod.logger}
    result: BucketingModule = _Buckets.load_dict(
        symbols, modules.sym_gen(bucketing_mod), modules.default_key(bucketing_mod), *params, **options
    )
    return result


class _Conversion(Conversion):
    """The conversion of a SymbolBlock whose parameters are known before its first call."""

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = False) -> None:
        """Write the converted block; that of unknown shapes before its first call."""
        if self.ran:
            super().export(path, epoch, remove_amp_cast)
            return
        sym = blocks.cached_graph(self.net)[1]
        stored = self.net.collect_params()
        with as_stored(stored.values()):
            params = {name: parameters.reduced(param) for name, param in stored.items()}
        states = {name: params.pop(name) for name in sym.list_auxiliary_states()}
        symbol.save_checkpoint(path, epoch, sym, params, states)


class _Buckets(BucketingModule):
    """A BucketingModule whose buckets have policies of their own: a name may stand in one of them alone."""

    def __init__(self, *args: Any, request: Request, **kwargs: Any) -> None:
        kwargs["policy"] = request.base()
        super().__init__(*args, **kwargs)
        self._request = request

    def _add_bucket(self, key: Any, symbol: Any = None) -> None:
        if key not in modules.buckets(self):
            symbol = modules.make_symbol(self, key)[0] if symbol is None else symbol
            self._options["policy"] = self._request.policy(symbol)
        super()._add_bucket(key, symbol)


def _copy(block: mx.gluon.HybridBlock, inputs: List[Any], sym: Any, ctx: Any) -> mx.gluon.SymbolBlock:
    """Return a SymbolBlock with float32 copies of those parameters of a block that a symbol reads."""
    result = mx.gluon.SymbolBlock(sym, inputs)
    originals = block.collect_params()
    for name, param in result.collect_params().items():
        original = originals[name]
        param.grad_req, param.lr_mult, param.wd_mult = original.grad_req, original.lr_mult, original.wd_mult
        contexts = original.list_ctx() if ctx is None else ctx
        parameters.load_value(param, to_float32(parameters.reduced(original)), contexts)
    return result


def _require(value: Any, kind: Any, argument: str) -> None:
    if not isinstance(value, kind):
        raise ConvertError(f"{argument} is a {type(value).__name__}; expected a {kind.__name__}.")
