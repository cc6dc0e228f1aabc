"""Look for what is wrong with a training loop, by two steps of it that do not count.

Only sure faults are looked for: in the order of the loop's calls, by MXNet's flags of fresh gradients, and in the state
of nets and trainers. Hooks on the nets and methods in front of the trainers' own see the calls.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, ClassVar, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from .. import dtypes
from ..arrays import all_finite, leaves, to_float32
from ..devices.check import check_cpu
from ..devices.processor import read_processor
from ..display import Notes, Record, Section
from ..errors import (
    MxmpError,
    NoBackwardError,
    NonFiniteLossError,
    StaleGradientError,
    TrainerError,
    UnscaledLossError,
    listed,
    mxnet_reason,
)
from ..gluon.adoption import policies_of
from ..gluon.blocks import blocks_in, conversions_of
from ..gluon.storage import LowPrecisionParameter, contexts_of, dtype_of
from ..gluon.trainer import Trainer
from ..loss_scale import DynamicLossScale, NoOpLossScale
from ..mxnet_private import checked_arrays, is_initialized
from ..train.step import scaler_of
from .kept import kept_training
from .tensor_cores import BATCH, Uneven, uneven_layers

Nets = Union[gluon.Block, Sequence[gluon.Block]]
Trainers = Union[gluon.Trainer, Sequence[gluon.Trainer]]

SEVERITIES = ("error", "warning", "note")

_STEPS = 2
_NORMS = (gluon.nn.BatchNorm, gluon.nn.LayerNorm, gluon.nn.InstanceNorm, gluon.nn.GroupNorm)
_USING = ("unscale", "clip_global_norm", "clip_value", "allreduce_grads", "step", "update")
"""The methods of a trainer that use gradients."""

_KINDS = {
    StaleGradientError: "no_gradient",
    NonFiniteLossError: "loss_not_finite",
    NoBackwardError: "no_backward",
    UnscaledLossError: "loss_not_scaled",
}
"""The kinds of the findings that errors are."""


@dataclass(frozen=True)
class LoopFinding:
    """One thing that is wrong with a loop.

    Attributes:
        kind: One name for it, such as 'loss_not_scaled'; `check_loop` lists them.
        text: The mistake, its place and its remedy.
        severity: 'error' if training is wrong, 'warning' if it likely is, 'note' if it is slow, or may not be meant.
    """

    kind: str
    text: str
    severity: str = "error"


@dataclass
class LoopFindings(Record):
    """The mistakes of a loop, errors first; empty, and false, if there are none.

    ``print`` shows a line for each, and a notebook the same as HTML. With `checking` it is complete when the block has
    ended.
    """

    _kind: ClassVar[str] = "check_loop"
    _title: ClassVar[str] = "The training loop"

    findings: Tuple[LoopFinding, ...] = ()

    def add(self, kind: str, text: str, severity: str = "error") -> None:
        """Add a finding, once for each kind and text."""
        finding = LoopFinding(kind, text, severity)
        if finding not in self.findings:
            ordered = sorted((*self.findings, finding), key=lambda each: SEVERITIES.index(each.severity))
            self.findings = tuple(ordered)

    @property
    def kinds(self) -> Tuple[str, ...]:
        """The kinds of all findings, each once."""
        return tuple(dict.fromkeys(finding.kind for finding in self.findings))

    def __iter__(self) -> Iterator[LoopFinding]:
        """Yield the findings."""
        return iter(self.findings)

    def __getitem__(self, index: int) -> LoopFinding:
        """Return a finding by its place."""
        return self.findings[index]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.findings)

    def __str__(self) -> str:
        """Return a line for each, or 'nothing found'."""
        return "\n".join(f"{finding.severity}: {finding.text}" for finding in self.findings) or "nothing found"

    def _sections(self) -> List[Section]:
        blocks = [
            Notes([each.text for each in self.findings if each.severity == severity], severity.capitalize())
            for severity in SEVERITIES
        ]
        return [Section("What is wrong", blocks, "" if self.findings else "nothing found")]


def check_loop(net: Nets, trainer: Trainers, loop: Callable[[], Any], speed: bool = True) -> LoopFindings:
    """Run two steps of a training loop and return its mistakes.

    A dry run: parameters, gradients, running statistics, optimizer states, update counts, loss scale and learning rate
    schedule are as before after it; logs of mxmp on the trainer do not see its steps. Other changes
    of the loop stay: the files of hooks and other logs, the state of random numbers, an iterator that it reads. A
    Module needs none: its ``fit`` makes the steps by itself.

    The mistakes by kind. Of the trainer: ``plain_trainer`` (one of MXNet where float16 needs one of mxmp),
    ``wrong_trainer`` (of another net), ``no_loss_scale`` (a note), ``schedule_on_skip`` (the learning rate is set
    though the step was skipped). Of the calls: ``never_called`` (the net was not), ``not_recorded``, ``not_training``,
    ``no_backward``, ``no_step``, ``step_recorded``. Of the loss: ``loss_not_scaled``, ``loss_precision`` (computed in
    low precision), ``loss_not_finite``. Of gradients: ``no_gradient`` (weights that backward does not reach),
    ``zero_grad_missing`` (with ``grad_req='add'``), ``steps_skipped`` (all of them). Of parameters and data:
    ``weights_not_finite``, ``norm_precision`` and ``cast_by_hand`` (``net.cast``), ``frozen_weight`` (of a Dense layer
    on a CPU whose bias is trained, which MXNet gets wrong), ``float64_data``. Of speed, as notes: ``uneven_sizes`` and
    ``slow_policy``. ``failed`` is an error of mxmp or MXNet. Other errors are raised.

    Args:
        net: The net, converted or not; or a list of nets.
        trainer: Its trainer, of mxmp or of MXNet; or a list of them.
        loop: Makes one step of the loop when it is called, and is called twice; it need not return anything.
        speed: Whether sizes that tensor cores do not like, and policies that are slow here, are looked for too.

    Returns:
        The findings; ``print`` them. It is false if nothing was found.

    Raises:
        TrainerError: If something else is given, or the trainer's kvstore holds weights that cannot be put back.

    Example:
        >>> def step():
        ...     with autograd.record():
        ...         loss = loss_fn(net(data), label)
        ...         with trainer.scale_loss(loss) as scaled:
        ...             scaled.backward()
        ...     trainer.step(data.shape[0])
        >>> print(mxmp.diagnose.check_loop(net, trainer, step))  # doctest: +SKIP
        nothing found
    """
    if not callable(loop):
        raise TrainerError(f"check_loop: loop is a {type(loop).__name__}; give a function that makes one step.")
    with checking(net, trainer, speed) as found:
        for _ in range(_STEPS):
            loop()
    return found


@contextlib.contextmanager
def checking(net: Nets, trainer: Trainers, speed: bool = True) -> Iterator[LoopFindings]:
    """Look for mistakes in the iterations of a training loop within this context: `check_loop` around them.

    Two iterations are enough. All that `check_loop` puts back is as before after the block, which an error of mxmp or
    MXNet ends, as a finding.

    Args:
        net: As for `check_loop`.
        trainer: As for `check_loop`.
        speed: As for `check_loop`.

    Yields:
        The findings, which are complete after the block.

    Raises:
        TrainerError: As `check_loop`.
    """
    nets, trainers = _listed("net", net, gluon.Block), _listed("trainer", trainer, gluon.Trainer)
    found = LoopFindings()
    _check_nets(nets, found)
    _check_finite(nets, 0, found)
    _check_trainers(nets, trainers, found)
    watch, before = _Watch(nets, trainers, found), len(found)
    with kept_training(nets, trainers), watch:
        try:
            yield found
            mx.nd.waitall()  # for errors of operators whose results nothing has read
            watch.finish()
        except (MxmpError, mx.MXNetError) as e:
            with contextlib.suppress(mx.MXNetError):
                mx.nd.waitall()  # or the same error comes again where the user waits
            watch.finish(e)
            kind = next((kind for error, kind in _KINDS.items() if isinstance(e, error)), "failed")
            if kind == "failed" or len(found) == before:  # else the watch has said why mxmp refuses the step
                text = mxnet_reason(e) if isinstance(e, mx.MXNetError) else str(e)
                found.add(kind, text if kind != "failed" else f"the loop fails: {text}")
        if speed:
            _check_speed(nets, watch.rows, found)


def _listed(name: str, value: Any, kind: type) -> List[Any]:
    several = list(value) if isinstance(value, (list, tuple)) else [value]
    for each in several:
        if not isinstance(each, kind):
            raise TrainerError(f"check_loop: {name} is a {type(each).__name__}; expected a gluon.{kind.__name__}.")
    if not several:
        raise TrainerError(f"check_loop: {name} is empty; give one at least.")
    return several


# ---------------------------------------------------------------------- the loop while it runs


class _Call(NamedTuple):
    """How a net was called."""

    is_recorded: bool
    is_training: bool


@dataclass
class _Step:
    """The step under way of one trainer."""

    trainer: gluon.Trainer
    is_begun: bool = False  # whether a loss was scaled
    is_using: bool = False  # whether a method that uses gradients runs, or has run since the last backward
    is_skipped: bool = False

    def params(self) -> List[gluon.Parameter]:
        """Return the parameters that are trained."""
        trained = (param for param in self.trainer._params if param.grad_req != "null")
        return [param for param in trained if is_initialized(param)]


class _Watch:
    """Notes what a loop does from one step to the next, and adds what is wrong to the findings.

    Attributes:
        rows: The sizes of the batches that the nets were called with.
    """

    def __init__(self, nets: Sequence[gluon.Block], trainers: Sequence[gluon.Trainer], found: LoopFindings) -> None:
        self.rows: List[int] = []
        self._nets, self._found = nets, found
        self._steps = [_Step(trainer) for trainer in trainers]
        self._calls: List[_Call] = []  # since the last step
        self._is_over = False  # whether a step has used the calls, so that the next one begins a new iteration
        self._called: Set[int] = set()  # nets that were called, or whose gradients were written
        self._count = self._skips = 0  # steps, and those skipped that no dynamic scale will mend
        self._handles: List[Any] = []

    def __enter__(self) -> None:
        self._handles = [net.register_forward_pre_hook(self._note_call) for net in self._nets]
        # Attributes of the one trainer hide its class's methods, whatever class that is; nothing of MXNet is replaced.
        for step in self._steps:
            methods = {name: partial(self._use, step, name) for name in _USING if hasattr(step.trainer, name)}
            methods["set_learning_rate"] = partial(self._set_rate, step)
            if isinstance(step.trainer, Trainer):
                methods["scale_loss"] = partial(self._scale_loss, step)
            for name, method in methods.items():
                vars(step.trainer)[name] = partial(method, getattr(step.trainer, name))

    def __exit__(self, *raised: object) -> None:
        for handle in self._handles:
            handle.detach()
        for step in self._steps:
            for name in (*_USING, "set_learning_rate", "scale_loss"):
                vars(step.trainer).pop(name, None)

    def _note_call(self, block: gluon.Block, inputs: Tuple[Any, ...]) -> None:
        arrays = [each for each in inputs if isinstance(each, mx.nd.NDArray)]
        if self._is_over:
            self._calls, self._is_over = [], False
        self._called.add(id(block))
        self._calls.append(_Call(autograd.is_recording(), autograd.is_training()))
        self.rows += [array.shape[0] for array in arrays[:1] if array.shape]
        if any(np.dtype(array.dtype) == np.float64 for array in arrays):
            self._found.add(
                "float64_data",
                f"block '{block.name}' is called with float64 data, as numpy makes it; give it x.astype('float32').",
            )

    @contextlib.contextmanager
    def _scale_loss(self, step: _Step, original: Any, loss: Any, *others: Any, **options: Any) -> Iterator[Any]:
        steps = [each for each in self._steps if each.trainer in (step.trainer, *others)]
        losses = [each for each in leaves(loss) if isinstance(each, mx.nd.NDArray)]
        for each in steps:
            self._begin(each)
        low = [dtypes.canonical(array.dtype) for array in losses if np.dtype(array.dtype).itemsize == 2]
        if low:
            self._found.add(
                "loss_precision",
                f"the loss is {low[0]}: it is computed in low precision, which loses its digits and caps the loss "
                f"scale; give the loss float32 outputs (output.astype('float32')).",
                "warning",
            )
        with original(loss, *others, **options) as scaled:
            yield scaled
        for each in steps:
            each.is_using = False

    def _begin(self, step: _Step) -> None:
        """Check, before the first backward of a step, that gradients which add up are zero."""
        params = [] if step.is_begun else [param for param in step.params() if param.grad_req == "add"]
        step.is_begun, step.is_skipped = True, step.is_skipped and step.is_begun
        left = [p.name for p in params if any(np.any(to_float32(grad).asnumpy()) for grad in p.list_grad())]
        if left:
            self._found.add(
                "zero_grad_missing",
                f"grad_req='add', but the gradients of {listed(left)} are not zero before the first backward of a "
                f"step: those of the step before are added in. Call zero_grad() on the parameters after each step.",
            )

    def _use(self, step: _Step, name: str, original: Any, *args: Any, **options: Any) -> Any:
        """Check the gradients before the first method that uses them, and call it."""
        stale = []
        if not step.is_using:
            step.is_using = True
            stale = self._check_stale(step, name, options.get("ignore_stale_grad", len(args) > 1 and args[1]))
        if name in ("step", "update"):
            self._count, self._is_over = self._count + 1, True
            self.check_recorded()
            if autograd.is_recording():
                self._found.add(
                    "step_recorded",
                    "step is called within autograd.record(), so that the update is recorded too; end the block before "
                    "it.",
                )
        try:
            result = original(*args, **options)
        except UserWarning as e:  # which MXNet's trainer raises for a gradient that is not fresh
            if not stale:
                raise
            raise StaleGradientError(str(e)) from e
        if name in ("step", "update"):
            step.is_begun = step.is_using = False
            step.is_skipped = result is False
            self._skips += step.is_skipped and not _may_recover(step)
        return result

    def _check_stale(self, step: _Step, name: str, is_ignored: Any) -> List[str]:
        """Find weights without a gradient, or all of them where a net was called; return their names."""
        # MXNet sets the flag of an array when backward writes its gradient, and a trainer's step takes it away.
        for net in self._nets:  # one whose parts were called counts as called
            if any(_is_fresh(param) for param in net.collect_params().values() if param.grad_req != "null"):
                self._called.add(id(net))
        fresh = {param.name for param in step.params() if _is_fresh(param)}
        stale = [param.name for param in step.params() if param.name not in fresh]
        if stale and not is_ignored and fresh:
            self._found.add(
                "no_gradient",
                f"no backward wrote the gradient of {listed(stale)} before {name}: the loss does not depend on them. "
                f"Call the layers that they belong to, or set grad_req='null' on them.",
            )
        elif stale and not is_ignored and self.check_recorded():
            self._found.add(
                "no_backward",
                f"no backward reached a weight of the trainer before {name}: call backward on the loss of the net, "
                f"once before each step.",
            )
        return stale

    def check_recorded(self) -> List[_Call]:
        """Check how the nets were called since the last step, and return the calls that were recorded."""
        recorded = [call for call in self._calls if call.is_recorded]
        if self._calls and not recorded:
            self._found.add(
                "not_recorded",
                "the net was called outside of autograd.record(), so that backward does not reach it; call net and "
                "loss within it.",
            )
        elif recorded and not any(call.is_training for call in recorded):
            self._found.add(
                "not_training",
                "the net is called in autograd.record(train_mode=False): dropout and BatchNorm run as in inference. "
                "Leave train_mode out, if that is not meant.",
                "warning",
            )
        return recorded

    def _set_rate(self, step: _Step, original: Any, rate: float) -> None:
        if step.is_skipped:
            self._found.add(
                "schedule_on_skip",
                "the learning rate is set after a step that was skipped, so that the schedule runs ahead of the "
                "updates; do it where step returned True, or give the optimizer an lr_scheduler.",
                "warning",
            )
        original(rate)

    def finish(self, error: Optional[Exception] = None) -> None:
        """Check what all steps have in common, up to the error that has ended them."""
        # An error before the first step says nothing of calls that were still to come.
        if error is not None:
            self.check_recorded()
            if not self._count:
                return
        never = [net.name for net in self._nets if id(net) not in self._called]
        if never and "wrong_trainer" not in self._found.kinds:
            self._found.add(
                "never_called",
                f"the loop did not call {listed(never)}: does it work on another net, or on a copy? Give the net that "
                f"it calls.",
            )
        if not self._count:
            self._found.add("no_step", "the loop did not call step of the trainer; give the trainer that it steps.")
        elif self._skips == self._count > 1:
            self._found.add(
                "steps_skipped",
                f"all {self._count} steps were skipped: their gradients are not finite; diagnose.Watch says why.",
                "warning",
            )
        _check_finite(self._nets, self._count, self._found)


def _is_fresh(param: gluon.Parameter) -> bool:
    """Return whether backward has written a parameter's gradient since the last step, on any context."""
    arrays = checked_arrays(param) if is_initialized(param) else ()
    scaler = getattr(param._trainer, "_scaler", None)
    noted = scaler.window.written.ids if scaler is not None and scaler.window is not None else ()
    return any(id(array) in noted or array._fresh_grad for array in arrays)


def _may_recover(step: _Step) -> bool:
    """Return whether a lower scale may end the skips: it is dynamic, and the weights are finite."""
    finite = all(all_finite(param.list_data()[:1]).asnumpy().item() for param in step.params())
    return finite and isinstance(scaler_of(step.trainer).loss_scale, DynamicLossScale)


# ---------------------------------------------------------------------- the state of nets and trainers


def _check_nets(nets: Sequence[gluon.Block], found: LoopFindings) -> None:
    """Find parameters that ``cast`` has put in low precision, and a bias that MXNet gives no gradient."""
    blocks = blocks_in(*nets)
    norms = [param for block in blocks if isinstance(block, _NORMS) for param in block.params.values()]
    low = [p for net in nets for p in net.collect_params().values() if dtype_of(p) in dtypes.LOW_PRECISION]
    low = [param for param in low if not isinstance(param, LowPrecisionParameter)]
    of_norms, others = [p for p in low if p in norms], [p for p in low if p not in norms]
    if of_norms:
        found.add(
            "norm_precision",
            f"parameters of normalization layers are {dtype_of(of_norms[0])}: {listed([p.name for p in of_norms])}. "
            f"Their sums need float32; call cast('float32') on these layers, and mxmp.gluon.convert(net, 'O2') in "
            f"place of net.cast.",
        )
    if others:
        found.add(
            "cast_by_hand",
            f"net.cast has put parameters in {dtype_of(others[0])}: {listed([p.name for p in others])}. Call "
            f"net.cast('float32'), and mxmp.gluon.cast(net, {dtype_of(others[0])!r}) in its place, which keeps what "
            f"needs it in float32.",
            "warning",
        )
    # MKLDNNFCBackward in src/operator/nn/mkldnn/mkldnn_fully_connected.cc at tag 1.9.1 writes the gradient of the bias
    # only if that of the weight is asked for; those of convolutions do not, nor do GPUs.
    for block in (block for block in blocks if isinstance(block, gluon.nn.Dense) and block.bias is not None):
        is_half = block.weight.grad_req == "null" and block.bias.grad_req != "null"
        if is_half and any(ctx.device_type != "gpu" for ctx in contexts_of([block.bias])):
            found.add(
                "frozen_weight",
                f"the weight of '{block.name}' is frozen while its bias is trained: MXNet 1.9.1 leaves such a bias's "
                f"gradient unwritten on a CPU, so that it is what the memory held; freeze both, or give the layer "
                f"use_bias=False and add the bias apart.",
                "warning",
            )


def _check_finite(nets: Sequence[gluon.Block], steps: int, found: LoopFindings) -> None:
    """Find parameters that are inf or NaN, after so many steps; those that were so before are found once."""
    params = [p for net in nets for p in net.collect_params().values() if is_initialized(p)]
    held = [(p.name, checked_arrays(p)) for p in params if "float" in dtype_of(p)]
    bad = [name for name, arrays in held if not all_finite(arrays).asnumpy().item()]
    if not bad or "weights_not_finite" in found.kinds:
        return
    why = ", which no step mends: load an earlier checkpoint, or initialize the net again"
    if steps:
        where = "mxmp.diagnose.explain says where that begins"
        why = f" after {steps} steps: the loss or its gradients were; {where}"
    found.add("weights_not_finite", f"parameters are inf or NaN{why}. They are {listed(bad)}.")


def _check_trainers(nets: Sequence[gluon.Block], trainers: Sequence[gluon.Trainer], found: LoopFindings) -> None:
    """Find trainers of MXNet where the nets need one of mxmp."""
    scaled = any(each.policy.loss_scale not in (None, 1.0) for each in conversions_of(blocks_in(*nets)))
    own = {id(param) for net in nets for param in net.collect_params().values()}
    if not any(id(param) in own for trainer in trainers for param in trainer._params):
        found.add(
            "wrong_trainer",
            f"the trainer has none of the parameters of {listed([net.name for net in nets])}, so that it does not "
            f"train them; give the net and the trainer of the same loop.",
        )
    for trainer in trainers:
        if isinstance(trainer, Trainer):
            if scaled and isinstance(trainer.loss_scale, NoOpLossScale):
                text = "the trainer has no loss scale, so that small gradients become 0 in float16"
                found.add("no_loss_scale", f"{text}; give it loss_scale='dynamic'.", "note")
            continue
        params = trainer._params
        low = [param.name for param in params if dtype_of(param) in dtypes.LOW_PRECISION]
        stores = low or any(policy.param_dtype in dtypes.LOW_PRECISION for policy in policies_of(params))
        reasons = ["gradients are not scaled, so that small ones become 0"] if scaled else []
        if stores and not getattr(trainer._optimizer, "multi_precision", False):
            names = f", {listed(low)}," if low else ""
            reasons.append(f"weights in low precision{names} have no float32 masters")
        if reasons:
            found.add(
                "plain_trainer",
                f"the trainer is a {type(trainer).__module__}.{type(trainer).__name__}, not one of mxmp: "
                f"{'; '.join(reasons)}. Use mxmp.gluon.Trainer, or mxmp.gluon.Trainer.adopt(trainer).",
            )


def _check_speed(nets: Sequence[gluon.Block], batches: Sequence[int], found: LoopFindings) -> None:
    """Find what makes low precision slow: this machine, and sizes that tensor cores do not take."""
    conversions = conversions_of(blocks_in(*nets))
    used = {each.policy.compute_dtype for each in conversions}
    on_cpu = all(ctx.device_type != "gpu" for net in nets for ctx in contexts_of(net.collect_params().values()))
    for dtype in sorted(used & set(dtypes.LOW_PRECISION)) if on_cpu else ():
        finding = check_cpu(read_processor(), dtype)
        if finding.ok is False:
            found.add("slow_policy", f"{finding.message} {finding.advice}", "note")
    layers: List[Uneven] = []
    for decisions in (each.last_graph.converted.decisions for each in conversions if each.last_graph is not None):
        rows = {(row.name, row.op) for row in decisions.report.rows if row.precision == dtypes.FLOAT16}
        layers += uneven_layers(decisions.before, decisions.facts, rows)
    named = []
    for layer in layers:
        sizes = ", ".join(f"{axis} {size}" for axis, size in layer.sizes.items() if axis != BATCH)
        named += [f"{layer.name} ({sizes})"] if sizes else []
    if named:
        text = f"sizes of {listed(named)} are no multiples of 8, which tensor cores want; pad"
        found.add("uneven_sizes", f"{text} them if the layer is large. `mxmp inspect` lists all.", "note")
    # A batch by itself says nothing where steps of a sequence come first, and a last one may be smaller.
    rows_of = [layer.sizes[BATCH] for layer in layers if BATCH in layer.sizes]
    if rows_of and max(batches, default=8) % 8:
        found.add("uneven_sizes", f"the batch of {max(rows_of)} is no multiple of 8, which tensor cores want.", "note")
