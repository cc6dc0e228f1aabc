"""compare_speed: a network under several policies, which take turns on the clock.

Two runs of the same training step differ by 4 to 6 % on a machine with other work, single ones by 20 %. So times are
compared within rounds, never between them. A difference counts only if it is larger than that, and if so many rounds
agree on it that it is hardly chance.

network, batches -> a run for each policy -> times, round by round -> SpeedComparison
"""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import time
import warnings
from statistics import median
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from .. import dtypes
from ..arrays import tree_leaves
from ..devices.amx import variable_set
from ..devices.auto import fastest_policy, parse_policy
from ..devices.check import amx_notes
from ..devices.processor import read_processor
from ..devices.speed import runs_bfloat16
from ..diagnose.batches import Batches, Example, arguments_of, inputs_of, losses_of, read_batches
from ..diagnose.subject import call_net, read_subject
from ..display.terminal import showing_progress
from ..errors import MxmpError, PolicyError, SlowPrecisionWarning, TuneError, did_you_mean, mxnet_reason
from ..gluon import Trainer, convert, freeze
from ..gluon.api import remove_conversions
from ..gluon.blocks import frozen_model, roots
from ..gluon.storage import contexts_of
from ..module import Module
from ..mxnet_private import is_deferred, is_initialized
from ..passes.scale_loss import is_loss_head
from ..policy import Policy
from ..report.tuning import FASTER, SAME, SLOWER, PolicySpeed, SpeedComparison
from ..symbol import Checkpoint, to_graph
from ..symbol.arguments import label_names

Action = Callable[[], Any]
"""Runs a network once, without waiting for its results, which it may return."""

Start = Callable[[Policy], Action]
"""Builds a copy of a network under a policy, and returns a function that runs it on a batch."""

Times = Dict[str, List[float]]
"""The seconds of a run by policy, one for each round."""

SECONDS = 30.0  # About how long the rounds may take.

MARGIN = 0.05  # A difference below this share of the time is noise.
FEWEST = 5  # The fewest rounds for a verdict: five rounds that agree are chance once in 32 times.
CHANCE = 1 / 16  # How often so many rounds may agree by chance: 6 of 7, 13 of 18.
NOISY = 0.15  # If rounds of one network scatter by more around their median, the machine is noisy.

_MOST_ROUNDS = 101
_SHORTEST = 0.02  # Seconds of a network in a round. Other programs disturb shorter times by more.
_MOST_RUNS = 100  # The most runs of a network in a round.
_FIRST_STEPS = 10  # In these a trainer compares low precision weights with their masters.
_LOSS_SCALE = 2.0**10  # In place of a dynamic one, so low that no step is skipped: that would be a shorter one.


class Training(NamedTuple):
    """How whole steps are trained: the loss, and the optimizer with its options."""

    loss: Any
    optimizer: str
    options: Dict[str, Any]


def compare_speed(
    network: Any,
    batches: Batches,
    policies: Union[None, str, Policy, Sequence[Union[str, Policy]]] = None,
    loss: Any = None,
    *,
    labels: Optional[int] = None,
    optimizer: str = "sgd",
    optimizer_params: Optional[Mapping[str, Any]] = None,
    seconds: float = SECONDS,
    progress: Optional[bool] = None,
) -> SpeedComparison:
    """Time a network under several policies on this machine, in turns.

    Without a loss inference is timed, and the network is frozen for it, as `mxmp.gluon.freeze` does it. With a loss
    whole training steps are timed: forward, backward and update. Copies of the network run; the network stays as it
    is. Each policy runs once in each round, so that other work on the machine slows all of them alike. On a GPU the
    times are those of finished kernels; no test has run there.

    Args:
        network: A Gluon net whose parameters have values, for inference a HybridBlock; (symbol, arg_params,
            aux_params); or a bound Module, which runs on its first context.
        batches: Batches, as for `mxmp.diagnose.compare`, with the shapes of the real work. The first one is taken. A
            net or symbol runs where its batch lies.
        policies: Policies or their names, such as 'auto' or 'O1'. The others are compared with the first one. Unless
            given: 'float32', and those that the device runs by itself.
        loss: None for inference. For training steps of a Gluon net, a function of its outputs and the labels. For those
            of a symbol or Module, which has loss heads, True.
        labels: How many arrays at the end of a net's batch are labels; None for as many as net and loss tell by their
            signatures.
        optimizer: The name of the optimizer of training steps.
        optimizer_params: Its options. The learning rate is 0 in any case, so that all steps are alike.
        seconds: About how long the rounds may take; there are at least five.
        progress: Whether to show a bar on stderr; by default if that is a terminal.

    Returns:
        The times. Its ``fastest`` is a policy to convert with.

    Raises:
        PolicyError: If a policy is invalid, or one of its patterns matches nothing.
        TuneError: If an argument is wrong, or the network does not run under the first policy.
        ConvertError: If the network or the batch cannot be read.

    Example:
        >>> net = mx.gluon.nn.Dense(4, in_units=8)
        >>> net.initialize()
        >>> found = compare_speed(net, [mx.nd.ones((2, 8))], ["float32", "O1"], seconds=0.01)
        >>> [row.policy for row in found.rows], found.rows[1].emulated
        (['float32', 'O1'], True)
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise TuneError(f"seconds is {seconds!r}; expected a positive number.")
    if not isinstance(optimizer, str) or optimizer.lower() not in mx.optimizer.Optimizer.opt_registry:
        raise TuneError(f"optimizer is {optimizer!r}; expected the name of an optimizer of MXNet, such as 'sgd'.")
    options = {**copy.deepcopy(dict(optimizer_params or {})), "learning_rate": 0.0}
    training = None if loss is None else Training(loss, optimizer, options)
    read = _read_net if isinstance(network, gluon.Block) else _read_model
    with autograd.pause():  # the caller may be recording
        context, start = read(network, batches, training, labels)
        named, notes = _named(policies, context)
        with showing_progress(sys.stderr.isatty() if progress is None else progress) as show:
            times, failures = _measure(start, named, seconds, training is not None, show)
    rows = tuple(_row(name, policy, times, failures, context) for name, policy in named.items())
    on_cpu, processor = context.device_type != "gpu", read_processor()
    notes += amx_notes([policy.compute_dtype for policy in named.values()] if on_cpu else [])
    if any(row.emulated for row in rows):
        notes.append("float16 is emulated on a CPU: its time says nothing of a GPU's.")
    if (rows[0].spread or 0.0) > NOISY:
        text = f"times of {rows[0].policy} differ by {rows[0].spread:.0%} from their median"
        notes.append(f"This machine is noisy: {text}. End other programs, and measure again.")
    device = processor.name if on_cpu else str(context)
    kind, amx = (processor.kind.name, processor.amx.on) if on_cpu else ("", False)
    return SpeedComparison(training is not None, rows, device, kind, amx, tuple(notes))


def _named(policies: Any, context: mx.Context) -> Tuple[Dict[str, Policy], List[str]]:
    """Return the policies by their texts, and notes on those that 'auto' chose."""
    with _quiet():
        if policies is None:
            on_gpu = context.device_type == "gpu"
            usual = ("O1", "O2") if on_gpu else ("mixed_bfloat16", "bfloat16") if runs_bfloat16() else ()
            notes = [fastest_policy([context]).chosen]
            return {name: Policy.parse(name) for name in ("float32", *usual)}, notes
        given = [policies] if isinstance(policies, (str, Policy)) else policies
        if not (isinstance(given, (list, tuple)) and given and all(isinstance(each, (str, Policy)) for each in given)):
            raise TuneError(f"policies is {policies!r}; expected policies or their names, such as ['float32', 'auto'].")
        named = {str(each): parse_policy(each, [context]) for each in given}
        return named, [policy.chosen for policy in named.values() if policy.chosen]


def _measure(
    start: Start,
    named: Mapping[str, Policy],
    seconds: float,
    training: bool,
    show: Callable[[str, Optional[float]], None],
) -> Tuple[Times, Dict[str, str]]:
    """Return the times of the policies that run, and why the others do not."""
    # All networks are in memory at a time: the rounds have to have every policy in them to be compared.
    runs: Dict[str, Action] = {}
    failures: Dict[str, str] = {}
    for name, policy in named.items():
        show(f"start {name}", None)
        try:
            runs[name] = _started(start, policy, training)
        except PolicyError:
            raise
        except (mx.MXNetError, MxmpError) as e:
            failures[name] = str(e) if isinstance(e, MxmpError) else mxnet_reason(e)
            if not runs:
                raise TuneError(f"network: it does not run under '{name}', the first policy: {failures[name]}") from e
    # Every network runs as often in a round as the first one needs for a time that is long enough.
    count = min(max(1, round(_SHORTEST / seconds_of(next(iter(runs.values())), 1))), _MOST_RUNS)
    times: Times = {name: [] for name in runs}
    begin = time.perf_counter()
    # At least as many rounds as a verdict needs, also where one takes longer than all of the time.
    for number in range(_MOST_ROUNDS):
        passed = (time.perf_counter() - begin) / seconds
        if number >= FEWEST and passed > 1:
            break
        show(f"round {number + 1}", passed)
        for name in list(runs)[:: -1 if number % 2 else 1]:  # in the reverse order of the round before
            times[name].append(seconds_of(runs[name], count))
    return times, failures


def _started(start: Start, policy: Policy, training: bool) -> Action:
    """Return a function that runs the network under a policy, once it has run."""
    with _quiet():
        run = start(policy)
        low = training and policy.param_dtype != dtypes.FLOAT32
        for _ in range(_FIRST_STEPS + 1 if low else 1):  # The first run has oneDNN generate its code.
            run()
        mx.nd.waitall()
    return run


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let nothing warn of a slow precision, which the clock tells here, and MXNet write no line for each bind.

    MXNet reads that variable once, at its first bind (src/executor/graph_executor.cc).
    """
    with warnings.catch_warnings(), variable_set("MXNET_SUBGRAPH_VERBOSE", "0"):
        warnings.simplefilter("ignore", SlowPrecisionWarning)
        yield


def _row(name: str, policy: Policy, times: Times, failures: Mapping[str, str], context: mx.Context) -> PolicySpeed:
    """Return the times of a policy, compared round by round with those of the first one."""
    emulated = context.device_type != "gpu" and dtypes.FLOAT16 in (policy.compute_dtype, policy.param_dtype)
    if name in failures:
        return PolicySpeed(name, emulated=emulated, failure=failures[name])
    own, base = times[name], next(iter(times.values()))
    ratios = [seconds / other for seconds, other in zip(own, base)]
    slower = SLOWER if is_faster([1 / ratio for ratio in ratios]) else SAME
    verdict = "" if own is base else FASTER if is_faster(ratios) else slower
    return PolicySpeed(name, median(own), scatter(own), median(ratios), verdict, tuple(own), emulated)


# ------------------------------------------------------------------ Gluon nets


def _read_net(
    net: gluon.Block, batches: Batches, training: Optional[Training], labels: Optional[int]
) -> Tuple[mx.Context, Start]:
    """Return where a Gluon net runs on the first of some batches, and the function that starts it."""
    if training is not None and not callable(training.loss):
        kind = type(training.loss).__name__
        raise TuneError(f"loss is a {kind}; expected a function of the net's outputs and the label, or None.")
    if frozen_model(net) is not None:
        raise TuneError(f"network: block '{net.name}' is frozen under a policy; give the net that it was made of.")
    params = net.collect_params()
    lacking = [name for name, each in params.items() if not (is_initialized(each) or is_deferred(each))]
    if lacking:
        raise TuneError(f"network: parameter '{lacking[0]}' has no value; initialize or load the net first.")
    loss = None if training is None else training.loss
    example: Example = next(read_batches(batches, 1)).for_net(arguments_of(net), loss, labels).on_context_of(net)
    arrays = [each for each in tree_leaves(example.inputs) if each is not None]
    context, size = arrays[0].ctx, arrays[0].shape[0]

    def infer(policy: Policy) -> Action:
        frozen = freeze(source, policy, ctx=context)
        return lambda: frozen(*example.inputs)

    def train(policy: Policy) -> Action:
        assert training is not None
        own = convert(_copy_of(net, context), policy)
        trainer = Trainer(own, training.optimizer, training.options, loss_scale=_loss_scale(policy))

        def step() -> None:
            with autograd.record():
                losses = losses_of(training.loss, call_net(own, example.inputs), example.labels)
                with trainer.scale_loss(list(losses)) as scaled:
                    autograd.backward(scaled)
            _require_taken(trainer.step(size))

        return step

    if training is not None:
        return context, train
    source = convert(_copy_of(net, context), "O1")  # It knows its graph then, for any inputs.
    with autograd.pause(train_mode=False):
        call_net(source, example.inputs)
    return context, infer


def _copy_of(net: gluon.Block, context: mx.Context) -> gluon.Block:
    """Return a copy of a net on one context, in float32, hybridized."""
    operators: Dict[int, Any] = {}

    def leave_out(block: gluon.Block) -> None:
        operator = block._cached_op if isinstance(block, gluon.HybridBlock) else None
        if operator is not None:  # It cannot be copied; the copy makes its own when it is called.
            operators[id(operator)] = None

    net.apply(leave_out)
    try:
        own = copy.deepcopy(net, operators)
    except TypeError as e:  # of a lock or a file among its attributes
        raise TuneError(f"network: block '{net.name}' cannot be copied ({e}); give a net that can be.") from e
    remove_conversions(own)
    if contexts_of(own.collect_params().values()) not in ([], [context]):
        own.collect_params().reset_ctx(context)
    # A conversion runs a net's graph whether it is hybridized or not: float32 is to be run as well.
    for block in roots(own):
        if not block._active:
            block.hybridize()
    return own


def _loss_scale(policy: Policy) -> Union[None, str, float]:
    """Return a loss scale that stays as it is: a dynamic one grows until a step is skipped."""
    return _LOSS_SCALE if policy.loss_scale == "dynamic" else policy.loss_scale


def _require_taken(taken: bool) -> None:
    if taken is False:
        text = f"its gradients are not finite at a loss scale of {_LOSS_SCALE:g}"
        raise TuneError(f"{text}, and a step that is skipped is shorter than others; see mxmp.diagnose.explain.")


# ------------------------------------------------------------------ symbols


def _read_model(
    network: Any, batches: Batches, training: Optional[Training], labels: Optional[int]
) -> Tuple[mx.Context, Start]:
    """Return where a model or Module runs on the first of some batches, and the function that starts it."""
    subject: Any = read_subject(network)
    if training is not None and training.loss is not True:
        kind = type(training.loss).__name__
        raise TuneError(f"loss is a {kind}; a symbol has its loss heads in it: give True for training steps, or None.")
    subject = subject.take(read_batches(batches, 1))
    if subject.module is None:
        subject.context = next((array.context for array in subject.taken[0].values()), subject.context)
    if training is not None:
        graph = to_graph(subject.model.symbol)
        if not any(is_loss_head(graph.nodes[head.node]) for head in graph.heads):
            outputs = ", ".join(subject.model.symbol.list_outputs())
            raise TuneError(
                f"network: training steps need a loss head, such as SoftmaxOutput, but no output ({outputs}) is of "
                "one. Append one, or time inference: leave --training, or loss, out."
            )
    values, names = subject.filled()[0][0], list(subject.inputs())
    values = {name: values[name].as_in_context(subject.context) for name in names}
    known = label_names(subject.model.symbol)
    known |= frozenset(subject.module.label_names or () if subject.module is not None else ())
    if known.issuperset(values):
        raise TuneError("network: no input of it is data, so that a batch has nothing to time.")

    def infer(policy: Policy) -> Action:
        shapes = {name: array.shape for name, array in values.items()}
        types = {name: dtypes.canonical(array.dtype) for name, array in values.items()}
        frozen = freeze(tuple(subject.model), policy, shapes, types, ctx=subject.context)
        arrays = [values[variable.name] for variable in frozen._cached_graph[0]]
        return lambda: frozen(*arrays)

    def train(policy: Policy) -> Action:
        assert training is not None
        return _module_step(subject, values, known, policy, training)

    return subject.context, infer if training is None else train


def _module_step(
    subject: Any, values: Mapping[str, Any], known: FrozenSet[str], policy: Policy, training: Training
) -> Action:
    """Return a function that makes a training step of a Module of its own; ``known`` are names of labels."""
    symbol, args, aux = subject.model
    labels = [name for name in values if name in known]
    data = [name for name in values if name not in known]
    described = {name: mx.io.DataDesc(name, array.shape, array.dtype) for name, array in values.items()}
    scale = _loss_scale(policy)
    module = Module(symbol, data, labels, context=subject.context, policy=policy, loss_scale=scale)
    module.bind([described[name] for name in data], [described[name] for name in labels] or None, for_training=True)
    module.set_params(args, aux)
    module.init_optimizer(None, training.optimizer, training.options)
    batch = mx.io.DataBatch([values[name] for name in data], [values[name] for name in labels])

    def step() -> None:
        module.forward_backward(batch)
        _require_taken(module.update())

    return step


# ------------------------------------------------------------------ for the command line


def context_of(gpu: Optional[int]) -> mx.Context:
    """Return the context of a GPU, or of the processor; a TuneError if MXNet has no such GPU."""
    count = mx.context.num_gpus()
    if gpu is not None and gpu >= count:
        raise TuneError(f"--gpu {gpu}: MXNet finds {count} GPUs here; `mxmp doctor` says why.")
    return mx.cpu() if gpu is None else mx.gpu(gpu)


def make_batch(
    model: Checkpoint, shapes: Mapping[str, Any], types: Mapping[str, str], arrays: Optional[Mapping[str, Any]] = None
) -> Dict[str, mx.nd.NDArray]:
    """Return inputs of a checkpoint's network: arrays, or random numbers from 0 to 1, integers 0 or 1, labels 0.

    Args:
        model: A symbol and its parameters; its inputs are the variables without values there.
        shapes: Shapes of the inputs that have no array, by name; labels may be left out.
        types: Dtypes of the inputs that are neither float32 nor declare their dtype.
        arrays: Values of inputs by name, as numpy has them.

    Raises:
        TuneError: If an input has no shape, or if there is no input of a name that is given.
    """
    arrays = arrays or {}
    declared, labels = inputs_of(model.symbol, {**model.arg_params, **model.aux_params}), label_names(model.symbol)
    for name in (*shapes, *types, *arrays):
        if name not in declared:
            raise TuneError(f"the network has no input {name!r}{did_you_mean(name, declared)}.")
    random, batch = np.random.RandomState(0), {}
    for name, dtype in {**declared, **types}.items():
        if name in arrays:
            batch[name] = mx.nd.array(arrays[name], dtype=dtype)
        elif name in shapes:
            values = random.uniform(size=shapes[name]) if "float" in dtype else random.randint(0, 2, shapes[name])
            batch[name] = mx.nd.array(values * (name not in labels)).astype(dtype)
        elif name not in labels:
            raise TuneError(f"input {name!r} has no shape; give --shape {name}:SIZES, or --data.")
    return batch


# ------------------------------------------------------------------ the clock


def seconds_of(run: Action, count: int) -> float:
    """Return the seconds of one of so many runs of a network, their results computed."""
    start = time.perf_counter()
    for _ in range(count):
        run()
        mx.nd.waitall()
    return (time.perf_counter() - start) / count


def scatter(times: Sequence[float]) -> float:
    """Return how far times are from their median: the median distance divided by the median."""
    middle = median(times)
    return median(abs(seconds - middle) for seconds in times) / middle


def is_faster(ratios: Sequence[float]) -> bool:
    """Return whether ratios of times, a round each, say that the first is faster by more than the noise.

    Their median is below 1 by more than `MARGIN`. So many of them are below 1 that chance gives that at most once in 16
    times (the sign test), and with that margin far less often.
    """
    if len(ratios) < FEWEST:
        return False
    agreeing = sum(ratio < 1 for ratio in ratios)
    chance = sum(math.comb(len(ratios), count) for count in range(agreeing, len(ratios) + 1)) / 2 ** len(ratios)
    return median(ratios) < 1 - MARGIN and chance <= CHANCE
