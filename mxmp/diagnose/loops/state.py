"""Checks of nets and trainers as they stand, before a loop runs or after it."""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence, Tuple

import mxnet as mx
from mxnet import gluon

from ... import dtypes
from ...arrays import all_finite
from ...devices.check import check_cpu
from ...devices.processor import read_processor
from ...gluon.blocks import blocks_in, conversions_of
from ...gluon.storage import LowPrecisionParameter, contexts_of, dtype_of
from ...gluon.trainer import Trainer
from ...loss_scale import NoOpLossScale
from ...mxnet_private import parameters
from ...mxnet_private import trainers as private
from ..tensor_cores import BATCH, Uneven, uneven_layers
from .findings import LoopFindings

_NORMS = (gluon.nn.BatchNorm, gluon.nn.LayerNorm, gluon.nn.InstanceNorm, gluon.nn.GroupNorm)
_NAMED = 3  # layers or parameters that a sentence names


def names_of(found: Sequence[str]) -> str:
    """Return names in words, the first few of them."""
    more = len(found) - _NAMED
    return ", ".join(f"'{name}'" for name in found[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def check_parameters(nets: Sequence[gluon.Block], found: LoopFindings) -> None:
    """Find parameters that ``cast`` has put in low precision."""
    blocks = blocks_in(*nets)
    norms = [block for block in blocks if isinstance(block, _NORMS)]
    low = _cast([param for block in norms for param in block.params.values()])
    if low:
        found.add(
            "norm_precision",
            f"parameters of normalization layers are {dtype_of(low[0])}: {names_of([p.name for p in low])}. Their sums "
            f"need float32; call cast('float32') on these layers, and mxmp.gluon.convert(net, 'O2') in place of "
            f"net.cast.",
        )
    others = [param for net in nets for param in net.collect_params().values() if param not in low]
    cast = _cast(others)
    if cast:
        found.add(
            "cast_by_hand",
            f"net.cast has put parameters in {dtype_of(cast[0])}: {names_of([p.name for p in cast])}. Call "
            f"net.cast('float32'), and mxmp.gluon.cast(net, {dtype_of(cast[0])!r}) in its place, which keeps what "
            f"needs it in float32.",
            "warning",
        )


def _cast(params: Sequence[gluon.Parameter]) -> List[gluon.Parameter]:
    return [p for p in params if not isinstance(p, LowPrecisionParameter) and dtype_of(p) in dtypes.LOW_PRECISION]


def check_frozen(nets: Sequence[gluon.Block], found: LoopFindings) -> None:
    """Find Dense layers on a CPU whose weight is frozen and whose bias is not.

    MKLDNNFCBackward in src/operator/nn/mkldnn/mkldnn_fully_connected.cc at tag 1.9.1 writes the gradient of the bias
    only if that of the weight is asked for; those of convolutions do not, nor do GPUs.
    """
    for block in blocks_in(*nets):
        if not isinstance(block, gluon.nn.Dense) or block.bias is None:
            continue
        is_half = block.weight.grad_req == "null" and block.bias.grad_req != "null"
        if is_half and any(ctx.device_type != "gpu" for ctx in contexts_of([block.bias])):
            found.add(
                "frozen_weight",
                f"the weight of '{block.name}' is frozen while its bias is trained: MXNet 1.9.1 leaves such a bias's "
                f"gradient unwritten on a CPU, so that it is what the memory held; freeze both, or give the layer "
                f"use_bias=False and add the bias apart.",
                "warning",
            )


def check_finite(nets: Sequence[gluon.Block], steps: int, found: LoopFindings) -> None:
    """Find parameters that are inf or NaN, after so many steps; those that were so before are found once."""
    if "weights_not_finite" in found.kinds:
        return
    params = [p for net in nets for p in net.collect_params().values() if parameters.is_initialized(p)]
    held = [(p.name, parameters.checked_arrays(p)) for p in params if "float" in dtype_of(p)]
    bad = [name for name, arrays in held if not all_finite(arrays).asnumpy().item()]
    if bad and steps:
        why = (
            f"after {steps} steps: the loss or its gradients were; mxmp.diagnose.find_nonfinite says where that begins."
        )
        found.add("weights_not_finite", f"parameters are inf or NaN {why} They are {names_of(bad)}.")
    elif bad:
        mend = "which no step mends: load an earlier checkpoint, or initialize the net again"
        found.add("weights_not_finite", f"parameters are inf or NaN, {mend}. They are {names_of(bad)}.")


def check_trainers(nets: Sequence[gluon.Block], trainers: Sequence[gluon.Trainer], found: LoopFindings) -> None:
    """Find trainers of MXNet where the nets need one of mxmp."""
    policies = [each.policy for each in conversions_of(blocks_in(*nets))]
    scaled = any(policy.loss_scale not in (None, 1.0) for policy in policies)
    own = {id(param) for net in nets for param in net.collect_params().values()}
    if not any(id(param) in own for trainer in trainers for param in private.params(trainer)):
        found.add(
            "wrong_trainer",
            f"the trainer has none of the parameters of {names_of([net.name for net in nets])}, so that it does not "
            f"train them; give the net and the trainer of the same loop.",
        )
    for trainer in trainers:
        if isinstance(trainer, Trainer):
            if scaled and isinstance(trainer.loss_scale, NoOpLossScale):
                text = "the trainer has no loss scale, so that small gradients become 0 in float16"
                found.add("no_loss_scale", f"{text}; give it loss_scale='dynamic'.", "note")
            continue
        low = [param.name for param in private.params(trainer) if dtype_of(param) in dtypes.LOW_PRECISION]
        masters = bool(getattr(private.optimizer(trainer), "multi_precision", False))
        reasons = ["gradients are not scaled, so that small ones become 0"] if scaled else []
        if low and not masters:
            reasons.append(f"weights in low precision, {names_of(low)}, have no float32 masters")
        if reasons:
            found.add(
                "plain_trainer",
                f"the trainer is a {type(trainer).__module__}.{type(trainer).__name__}, not one of mxmp: "
                f"{'; '.join(reasons)}. Use mxmp.gluon.Trainer, or mxmp.gluon.Trainer.adopt(trainer).",
            )


def check_speed(nets: Sequence[gluon.Block], batches: Sequence[int], found: LoopFindings) -> None:
    """Find what makes low precision slow: sizes that tensor cores do not take, and this machine."""
    conversions = conversions_of(blocks_in(*nets))
    used = {each.policy.compute_dtype for each in conversions}
    on_cpu = all(ctx.device_type != "gpu" for net in nets for ctx in contexts_of(net.collect_params().values()))
    if on_cpu and dtypes.FLOAT16 in used:
        text = "float16 is emulated on a CPU, which is slower than float32: fine for a test, not to train with."
        found.add("slow_policy", f"{text} On a CPU take 'mixed_bfloat16' or float32.", "note")
    if on_cpu and dtypes.BFLOAT16 in used:
        processor = check_cpu(read_processor(), dtypes.BFLOAT16)
        if processor.ok is False:
            found.add("slow_policy", f"{processor.message} {processor.advice}", "note")
    if dtypes.FLOAT16 not in used:
        return
    layers = [layer for each in conversions for layer in _uneven(each)]
    named = [f"{layer.name} ({sizes})" for layer in layers if (sizes := _sizes_of(layer))]
    if named:
        text = f"sizes of {names_of(named)} are no multiples of 8, which tensor cores want; pad"
        found.add("uneven_sizes", f"{text} them if the layer is large. `mxmp inspect` lists all.", "note")
    # A batch by itself says nothing where steps of a sequence come first, and a last one may be smaller.
    rows = [layer.sizes[BATCH] for layer in layers if BATCH in layer.sizes]
    if rows and max(batches, default=8) % 8:
        found.add("uneven_sizes", f"the batch of {max(rows)} is no multiple of 8, which tensor cores want.", "note")


def _uneven(conversion: Any) -> Tuple[Uneven, ...]:
    """Return the layers of a net's last graph whose sizes do not fit."""
    if conversion.current is None:
        return ()
    decisions = conversion.current.converted.decisions
    rows = {(row.name, row.op) for row in decisions.report.rows if row.precision == dtypes.FLOAT16}
    return uneven_layers(decisions.before, decisions.facts, rows)


def _sizes_of(layer: Uneven) -> str:
    """Return the sizes of a layer in words, but for the batch."""
    return ", ".join(f"{what} {size}" for what, size in layer.sizes.items() if what != BATCH)


def arrays_in(value: Any) -> Iterator[Any]:
    """Yield the arrays of nested lists and tuples."""
    if isinstance(value, mx.nd.NDArray):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from arrays_in(each)


def is_low(array: Any) -> bool:
    """Return whether something is an array in low precision."""
    return isinstance(array, mx.nd.NDArray) and dtypes.canonical(array.dtype) in dtypes.LOW_PRECISION
