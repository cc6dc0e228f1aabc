"""Look for mistakes of a net and its trainer before they train. Nothing is run.

Only sure faults are looked for, in the state of nets and trainers. Other faults only show in a step. The trainer raises
them in its first one.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence, Union

from mxnet import gluon

from .. import dtypes
from ..arrays import all_finite
from ..devices.check import check_cpu
from ..devices.processor import read_processor
from ..errors import TrainerError, a_type_of, listed
from ..gluon.adoption import policies_of
from ..gluon.blocks import blocks_in, conversions_of
from ..gluon.storage import LowPrecisionParameter, contexts_of, dtype_of
from ..gluon.trainer import Trainer
from ..loss_scale import NoOpLossScale, StaticLossScale
from ..mxnet_private import checked_arrays, is_initialized
from ..report.doctor import CheckReport, Finding
from .tensor_cores import BATCH, Uneven, uneven_layers

Nets = Union[gluon.Block, Sequence[gluon.Block]]
Trainers = Union[gluon.Trainer, Sequence[gluon.Trainer]]

_NORMS = (gluon.nn.BatchNorm, gluon.nn.LayerNorm, gluon.nn.InstanceNorm, gluon.nn.GroupNorm)


def check(net: Nets, trainer: Trainers) -> CheckReport:
    """Return the mistakes that a net and its trainer show before they train; nothing is run or changed.

    The trainer has the findings 'plain_trainer' (it is one of MXNet, and float16 needs one of mxmp), 'wrong_trainer'
    (it has no parameter of the net), 'not_converted' (it has a loss scale, and no net is converted) and
    'no_loss_scale' (in bfloat16 this only says that nothing is checked). Parameters have 'weights_not_finite',
    'norm_precision' and 'cast_by_hand' (by ``net.cast``), 'frozen_weight' (a Dense layer on a CPU whose bias is
    trained, which MXNet gets wrong) and 'gradients_add_up' (``grad_req='add'``). The policy has 'output_precision', if
    the loss is computed in low precision. Notes on speed are 'uneven_sizes', for the graphs that have run,
    and 'slow_policy'.

    A trainer of mxmp raises other faults in its first step, such as a loss that was not scaled, or a weight that
    backward does not reach. It warns once of a loss with one element, if ``step(batch_size)`` divides its gradients.

    Args:
        net: The net, converted or not; or a list of nets.
        trainer: Its trainer, of mxmp or of MXNet; or a list of them.

    Returns:
        The findings, faults first; ``print`` them. It is false if nothing was found.

    Raises:
        TrainerError: If something else is given.

    Example:
        >>> import mxnet as mx
        >>> net = mx.gluon.nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
        >>> print(check(net, trainer))
        nothing found
    """
    nets, trainers = _listed("net", net, gluon.Block), _listed("trainer", trainer, gluon.Trainer)
    found = [*_of_trainers(nets, trainers), *_of_parameters(nets), *_of_policies(nets), *_of_sizes(nets)]
    return CheckReport(tuple(sorted(found, key=lambda each: each.ok is not False)))


def _listed(name: str, value: Any, kind: type) -> List[Any]:
    several = list(value) if isinstance(value, (list, tuple)) else [value]
    for each in several:
        if not isinstance(each, kind):
            raise TrainerError(f"check: {name} is {a_type_of(each)}; expected a gluon.{kind.__name__}.")
    if not several:
        raise TrainerError(f"check: {name} is empty; give one at least.")
    return several


def _of_trainers(nets: Sequence[gluon.Block], trainers: Sequence[gluon.Trainer]) -> Iterator[Finding]:
    """Yield trainers of other nets, of MXNet where the nets need one of mxmp, and those whose loss scale is wrong."""
    policies = [each.policy for each in conversions_of(blocks_in(*nets))]
    scaled = any(policy.loss_scale not in (None, 1.0) for policy in policies)
    is_mixed = any(policy.is_mixed for policy in policies)
    own = {id(param) for net in nets for param in net.collect_params().values()}
    if not any(id(param) in own for trainer in trainers for param in trainer._params):
        text = f"the trainer has no parameter of {listed([net.name for net in nets])}, so that it does not train them."
        yield Finding("wrong_trainer", text, False, "Give the net and the trainer of the same loop.")
    for trainer in trainers:
        params = trainer._params
        low = [param.name for param in params if dtype_of(param) in dtypes.LOW_PRECISION]
        trained_policies = policies_of(params)
        if isinstance(trainer, Trainer):
            checks = not isinstance(trainer.loss_scale, NoOpLossScale)
            if not checks and scaled:
                text = "the trainer has no loss scale, so that small gradients become 0 in float16."
                yield Finding("no_loss_scale", text, None, "Give it loss_scale='dynamic'.")
            elif not checks and is_mixed:
                text = "the trainer has no loss scale, so that it checks neither losses nor gradients for NaN."
                yield Finding("no_loss_scale", text, None, "To have it check them give it loss_scale=1.")
            elif checks and trainer.loss_scale != StaticLossScale(1.0) and not (trained_policies or low):
                text = "the trainer scales the loss, and no net that it trains is converted: all runs in float32."
                advice = "Call mxmp.gluon.convert(net, policy), or give the trainer loss_scale=None."
                yield Finding("not_converted", text, False, advice)
            continue
        stores = low or any(policy.param_dtype in dtypes.LOW_PRECISION for policy in trained_policies)
        reasons = ["gradients are not scaled, so that small ones become 0"] if scaled else []
        if stores and not getattr(trainer._optimizer, "multi_precision", False):
            names = f", {listed(low)}," if low else ""
            reasons.append(f"weights in low precision{names} have no float32 masters")
        if reasons:
            text = f"the trainer is a {type(trainer).__module__}.{type(trainer).__name__}: {'; '.join(reasons)}."
            yield Finding("plain_trainer", text, False, "Use mxmp.gluon.Trainer, or mxmp.gluon.Trainer.adopt(trainer).")


def _of_parameters(nets: Sequence[gluon.Block]) -> Iterator[Finding]:
    """Yield parameters that are not finite or were cast to low precision, and gradients that MXNet does not write."""
    blocks, params = blocks_in(*nets), [param for net in nets for param in net.collect_params().values()]
    held = [(p.name, checked_arrays(p)) for p in params if is_initialized(p) and "float" in dtype_of(p)]
    bad = [name for name, arrays in held if not all_finite(arrays).asnumpy().item()]
    if bad:
        text = f"parameters are inf or NaN, which no step repairs: {listed(bad)}."
        yield Finding("weights_not_finite", text, False, "Load an earlier checkpoint, or initialize the net again.")
    norms = [param for block in blocks if isinstance(block, _NORMS) for param in block.params.values()]
    low = [p for p in params if dtype_of(p) in dtypes.LOW_PRECISION and not isinstance(p, LowPrecisionParameter)]
    of_norms, others = [p for p in low if p in norms], [p for p in low if p not in norms]
    if of_norms:
        text = f"parameters of normalization layers are {dtype_of(of_norms[0])}: {listed([p.name for p in of_norms])}."
        advice = "Call cast('float32') on these layers, and mxmp.gluon.convert(net, 'O2') in place of net.cast."
        yield Finding("norm_precision", text, False, advice)
    if others:
        dtype, names = dtype_of(others[0]), listed([p.name for p in others])
        advice = f"Call net.cast('float32'), then mxmp.gluon.cast(net, {dtype!r}), which keeps some layers in float32."
        yield Finding("cast_by_hand", f"net.cast has put parameters in {dtype}: {names}.", None, advice)
    # MKLDNNFCBackward (src/operator/nn/mkldnn/mkldnn_fully_connected.cc at tag 1.9.1) writes the gradient of the bias
    # only if that of the weight is asked for. Convolutions and GPUs write both.
    for block in (block for block in blocks if isinstance(block, gluon.nn.Dense) and block.bias is not None):
        is_half = block.weight.grad_req == "null" and block.bias.grad_req != "null"
        if is_half and any(ctx.device_type != "gpu" for ctx in contexts_of([block.bias])):
            text = (
                f"the weight of '{block.name}' is frozen, and its bias is trained. On a CPU MXNet 1.9.1 does not write "
                f"the gradient of such a bias: it is whatever the memory held."
            )
            yield Finding("frozen_weight", text, False, "Freeze both, or give the layer use_bias=False.")
    adding = [param.name for param in params if param.grad_req == "add"]
    if adding:
        text = f"grad_req='add': the gradients of {listed(adding)} add up from step to step."
        advice = "Call net.collect_params().zero_grad() after each step, or use mxmp.gluon.Accumulator."
        yield Finding("gradients_add_up", text, None, advice)


def _of_policies(nets: Sequence[gluon.Block]) -> Iterator[Finding]:
    """Yield policies whose losses are in low precision, or that are slow on this processor."""
    policies = [conversion.policy for conversion in conversions_of(blocks_in(*nets))]
    for dtype in sorted({each.output_dtype for each in policies} & set(dtypes.LOW_PRECISION)):
        text = f"the outputs are {dtype}, so that the loss is computed in it, with few digits and a low loss scale."
        yield Finding("output_precision", text, None, "Give the policy output=float32, or the loss float32 outputs.")
    on_cpu = all(ctx.device_type != "gpu" for net in nets for ctx in contexts_of(net.collect_params().values()))
    for dtype in sorted({each.compute_dtype for each in policies} & set(dtypes.LOW_PRECISION)) if on_cpu else ():
        finding = check_cpu(read_processor(), dtype)
        if finding.ok is False:
            yield Finding("slow_policy", finding.message, None, finding.advice)


def _of_sizes(nets: Sequence[gluon.Block]) -> Iterator[Finding]:
    """Yield sizes of float16 layers that tensor cores do not take, of the graphs that have run."""
    layers: List[Uneven] = []
    conversions = [each for each in conversions_of(blocks_in(*nets)) if each.last_graph is not None]
    for decisions in (each.last_graph.converted.decisions for each in conversions):
        rows = {(row.name, row.op) for row in decisions.report.rows if row.precision == dtypes.FLOAT16}
        layers += uneven_layers(decisions.before, decisions.facts, rows)
    named = []
    for layer in layers:
        sizes = ", ".join(f"{axis} {size}" for axis, size in layer.sizes.items() if axis != BATCH)
        named += [f"{layer.name} ({sizes})"] if sizes else []
    if named:
        text = f"sizes of {listed(named)} are no multiples of 8, which tensor cores want."
        yield Finding("uneven_sizes", text, None, "Pad them if the layer is large. `mxmp inspect` lists all.")
    # A batch by itself says nothing where steps of a sequence come first.
    rows_of = [layer.sizes[BATCH] for layer in layers if BATCH in layer.sizes]
    if rows_of:
        text = f"the batch of {max(rows_of)} is no multiple of 8, which tensor cores want."
        yield Finding("uneven_sizes", text, None, "Take another batch size, unless this was the last one of an epoch.")
