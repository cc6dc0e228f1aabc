"""The table of all benchmarks: groups of cases; columns of a case are ways to do the same work, which take turns."""

from __future__ import annotations

import gc
import math
import os
import tempfile
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import mxmp  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp

from mxmp import Policy, dtypes
from mxmp.loss_scale import DynamicLossScale
from mxmp.passes import classify, place
from mxmp.symbol import convert_model, convert_symbol, infer_facts, on_cpu, to_graph

from .zoo import IMAGE_SIZES, Model, Task, make_model, make_net, make_task, undecided_inputs

STATIC = {"static_alloc": True, "static_shape": True}
FUSED = {"backend": "MKLDNN", **STATIC}
FLOAT32, PEER = dtypes.FLOAT32, "contrib.amp"
ONNX_COLUMNS = {"ONNX Runtime": "onnxruntime", "OpenVINO": "openvino"}  # and their packages
INIT_SCALE = 2.0**10  # of losses: so low that no step is skipped, which would be a shorter one

FIRST_STEPS = 10  # of a trainer, in which it compares its masters with the weights
Run = Callable[[], Any]


@dataclass(frozen=True)
class Options:
    """What the command line says of each case; 0 stands for the case's own."""

    policy: str = "mixed_bfloat16"
    float16: bool = False
    batch_size: int = 0
    image_size: int = 0
    rounds: int = 11  # at most
    seconds: float = 0.0  # about, once there are five rounds
    cpu_time: bool = False
    seed: int = 0
    small: bool = False

    @property
    def leave_out(self) -> bool:
        """Whether rounds are left out in which other programs took much: their time counts, and is looked at."""
        return not self.cpu_time and not self.small


@dataclass(frozen=True)
class Started:
    """A column that can run."""

    run: Optional[Run]  # does the work once; an array that it returns has an error. None: there is nothing to time
    prepare: Run = lambda: None  # is called before each run, and not timed
    values: Mapping[str, Any] = field(default_factory=dict)  # further results
    warmup: int = 2  # runs before those that are timed


@dataclass(frozen=True)
class Column:
    """One way to do the work of a case."""

    name: str
    start: Callable[[], Started]
    dtype: str = FLOAT32  # of its products
    is_base: bool = False  # others are compared with it; where there are several, with the fastest
    front: str = ""  # columns of one front are compared with each other, and share a table


def inference(name: str, options: Options) -> List[Column]:
    """Return the forms in which a network infers: MXNet's, contrib.amp's, mxmp's, and others' of its ONNX file."""
    model = make_model(name, options.batch_size or 8, options.image_size, options.seed)
    policy, float32, shapes = Policy.parse(options.policy), Policy.parse(FLOAT32), {"data": model.images.shape}
    low, stored = policy.compute_dtype, policy.replace(param_dtype=policy.compute_dtype)
    peer = {"target_dtype": low, "cast_optional_params": True}

    def symbolic(title: str, convert: Run, dtype: str = low, is_base: bool = False) -> Column:
        return Column(title, lambda: Started(_bound(model, *convert())), dtype, is_base, "symbolic")

    def net(title: str, make: Run, flags: Dict[str, Any], dtype: str = low, is_base: bool = False) -> Column:
        return Column(title, lambda: Started(_call(make(), model, flags)), dtype, is_base, "Gluon")

    def own(policy: Policy, **how: Any) -> Any:
        symbol, *params = convert_model(model.symbol, *model.params(), policy, shapes=shapes, **how)
        return (on_cpu(symbol) if policy.compute_dtype == dtypes.FLOAT16 else symbol, *params)

    def peer_net() -> Any:
        net = model.copy()
        net.hybridize()
        net(model.images[:1]).wait_to_read()  # contrib.amp wants a net that has its graph
        with undecided_inputs():
            return amp.convert_hybrid_block(net, ctx=mx.cpu(), **peer)

    columns = [
        symbolic("bound", lambda: (model.symbol, *model.params()), FLOAT32, True),
        symbolic("mxmp float32, folded", lambda: own(float32, for_inference=True), FLOAT32),
        symbolic(PEER, lambda: amp.convert_model(model.symbol, *model.params(), **peer)),
        symbolic("mxmp, fused", lambda: own(stored)),
        symbolic("mxmp, folded", lambda: own(stored, for_inference=True)),
        net("hybridized", model.copy, STATIC, FLOAT32, True),
        net("fused", model.copy, FUSED, FLOAT32, True),
        net("mxmp float32, frozen", lambda: mxmp.gluon.freeze(model.copy(), float32, shapes), {}, FLOAT32),
        net(PEER, peer_net, FUSED),
        net("mxmp, fused", lambda: mxmp.gluon.convert(model.copy(), stored), FUSED),
        net("mxmp, frozen", lambda: mxmp.gluon.freeze(model.copy(), stored, shapes), {}),
    ]
    columns += [
        Column(title, partial(_onnx_file, model, title), front="Gluon")
        for title in ONNX_COLUMNS
        if not missing_packages(title)
    ]
    # MXNet has no float16 products on a CPU, and only mxmp emulates them.
    return [each for each in columns if each.name != PEER or low != dtypes.FLOAT16]


def missing_packages(title: str) -> List[str]:
    """Return the packages that a column of the ONNX file needs, and that are not installed."""
    return [name for name in ("onnx", ONNX_COLUMNS[title]) if find_spec(name) is None]


def _bound(model: Model, symbol: Any, args: Any, aux: Any) -> Run:
    executor = symbol.bind(mx.cpu(), {**args, "data": model.images}, aux_states=aux, grad_req="null")
    return lambda: executor.forward(is_train=False)[0]


def _call(net: Any, model: Model, flags: Dict[str, Any]) -> Run:
    if flags:
        net.hybridize(**flags)
    return lambda: net(model.images)


def _onnx_file(model: Model, title: str) -> Started:
    """Return a run of the exported ONNX file, in float32."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    images = model.images.asnumpy()
    with tempfile.TemporaryDirectory() as folder:
        file, shapes = f"{folder}/net.onnx", {"data": images.shape}
        mxmp.onnx.export_model(model.symbol, *model.params(), file, shapes)
        if title == "OpenVINO":
            import openvino

            hints = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
            compiled = openvino.Core().compile_model(file, "CPU", hints)
            return Started(lambda: compiled([images])[0])
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        # Its threads would spin as they wait, and slow the next column: a frozen ResNet-18 took 53 ms, not 32.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    return Started(lambda: session.run(None, {"data": images})[0])


def training(name: str, options: Options) -> List[Column]:
    """Return the ways to train a network, forward to update."""
    low = Policy.parse(options.policy).compute_dtype
    policies = {options.policy: options.policy, f"{low}, stored": f"param={low},compute={low}"}
    policies.update({"float16 O1": "O1", "float16 O2": "O2"} if options.float16 else {})

    def column(title: str, mode: str, dtype: str) -> Column:
        return Column(title, lambda: Started(_step(name, mode, options), warmup=FIRST_STEPS), dtype, mode == FLOAT32)

    plain = [FLOAT32, PEER] if low == dtypes.BFLOAT16 else [FLOAT32]
    own = [column(title, text, Policy.parse(text).compute_dtype) for title, text in policies.items()]
    return [*(column(mode, mode, low if mode == PEER else FLOAT32) for mode in plain), *own]


def _step(name: str, mode: str, options: Options) -> Run:
    """Return a training step in a mode: one of float32, contrib.amp, which changes this process, or a policy."""
    if mode == PEER:
        amp.init(target_dtype=dtypes.BFLOAT16)
    task = make_task(name, options.batch_size, options.image_size, options.seed)
    optimizer, settings = task.optimizer
    params, plain = task.net.collect_params(), mode in (FLOAT32, PEER)
    if plain:
        trainer: Any = gluon.Trainer(params, optimizer, dict(settings))
    else:
        policy = Policy.parse(mode)
        mxmp.gluon.convert(task.net, policy)
        scale = DynamicLossScale(INIT_SCALE) if policy.loss_scale == "dynamic" else policy.loss_scale
        trainer = mxmp.gluon.Trainer(params, optimizer, dict(settings), loss_scale=scale)

    def step() -> Any:
        with autograd.record():
            loss = _loss(task)
            if plain:
                loss.backward()
            else:
                with trainer.scale_loss(loss) as scaled:
                    scaled.backward()
        _update(trainer, len(task.labels))
        return loss

    return step


def _loss(task: Task) -> Any:
    outputs = task.net(*task.inputs)
    logits = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    return gluon.loss.SoftmaxCrossEntropyLoss()(logits, task.labels)


def _update(trainer: Any, batch_size: int) -> None:
    if trainer.step(batch_size) is False:
        raise RuntimeError("a step was skipped, which takes less time than others")


def trainer_step(dtype: str, options: Options) -> List[Column]:
    """Return a step of each trainer on ResNet-50's parameters: SGD with momentum, behind a backward."""

    def start(make: Callable[..., Any], **how: Any) -> Started:
        net = make_net("resnet18_v1" if options.image_size else "resnet50_v1")
        net.initialize(mx.init.Xavier())
        net(mx.nd.zeros((1, 3, 64, 64)))
        net.cast(dtype)
        params = list(net.collect_params().values())
        settings = {"learning_rate": 1e-3, "momentum": 0.9, "multi_precision": make is gluon.Trainer}
        trainer, trained = make(params, "sgd", settings, **how), [each for each in params if each.grad_req != "null"]

        def prepare() -> None:
            with autograd.record():
                # All gradients are 2**-10, times the scale.
                loss = mx.nd.add_n(*((each.data().astype(FLOAT32) * 2.0**-10).sum() for each in trained))
                if make is gluon.Trainer:
                    loss.backward()
                else:
                    with trainer.scale_loss(loss) as scaled:
                        scaled.backward()

        return Started(lambda: _update(trainer, 1), prepare, warmup=FIRST_STEPS)

    scale = DynamicLossScale(2.0**16)
    return [
        Column("mx.gluon", lambda: start(gluon.Trainer), is_base=True),
        Column("mxmp", lambda: start(mxmp.gluon.Trainer, loss_scale=scale)),
    ]


def conversion(name: str, options: Options) -> List[Column]:
    """Return conversions of a model, weights in float32 (O1) or stored in float16 (O2), and of its symbol alone."""
    model = make_model(name, 1, 64)
    symbol, (args, aux) = model.symbol, model.params()

    def peer(stored: bool) -> Run:
        return lambda: amp.convert_model(symbol, dict(args), dict(aux), cast_optional_params=stored)

    pairs = {
        "weights in float32 (O1)": (peer(False), lambda: convert_model(symbol, args, aux, "O1")),
        "weights in float16 (O2)": (peer(True), lambda: convert_model(symbol, args, aux, "O2")),
        "symbol alone (O1)": (lambda: amp.convert_symbol(symbol), lambda: convert_symbol(symbol, "O1")),
    }

    def column(front: str, title: str, convert: Run) -> Column:
        return Column(title, lambda: Started(convert, gc.collect), is_base=title == PEER, front=front)

    return [column(front, title, each) for front, two in pairs.items() for title, each in zip((PEER, "mxmp"), two)]


def placement(name: str, options: Options) -> List[Column]:
    """Return the casts of O1 in a network with the megabytes that they read and write, and the time of the cut."""
    task = make_task(name, options.batch_size or 8, options.image_size, options.seed)
    symbol, shapes = _symbol(task)
    graph, facts = to_graph(symbol), _facts(symbol, shapes)
    decisions = classify(graph, Policy.parse("O1"), facts)
    own, peer = convert_symbol(symbol, "O1", shapes=shapes), amp.convert_symbol(symbol)
    cut = Started(lambda: place(graph, decisions, facts), values=casts_of(own, shapes))
    counts = Started(None, values=casts_of(peer, shapes))
    return [Column("mxmp", lambda: cut, is_base=True), Column(PEER, lambda: counts)]


def _symbol(task: Task) -> Tuple[Any, Dict[str, Tuple[int, ...]]]:
    shapes = {f"data{number}": value.shape for number, value in enumerate(task.inputs)}
    outputs = task.net(*map(mx.sym.var, shapes))
    return mx.sym.Group(outputs) if isinstance(outputs, (list, tuple)) else outputs, shapes


def casts_of(symbol: Any, shapes: Mapping[str, Tuple[int, ...]]) -> Dict[str, Any]:
    """Return the number of a symbol's casts, and the megabytes that they read and write."""
    facts, moved = _facts(symbol, shapes), []
    for position, node in enumerate(to_graph(symbol).nodes):
        for index, entry in enumerate(node.inputs if node.op in ("Cast", "amp_cast", "amp_multicast") else ()):
            pair = facts.dtype(entry) or FLOAT32, facts.dtypes[position, index]
            if pair[0] != pair[1]:
                moved.append(math.prod(facts.shape(entry) or ()) * sum(dtypes.ITEM_BYTES[each] for each in pair))
    return {"casts": len(moved), "MB": round(sum(moved) / 1e6, 1)}


def _facts(symbol: Any, shapes: Mapping[str, Tuple[int, ...]]) -> Any:
    params = frozenset(symbol.list_inputs()) - set(shapes)
    return infer_facts(symbol, to_graph(symbol), dict(shapes), dict.fromkeys(shapes, FLOAT32), params)


@dataclass(frozen=True)
class Group:
    """Cases of one kind."""

    about: str
    columns: Callable[[str, Options], List[Column]]
    cases: Tuple[str, ...]  # those that run unless others are named
    small: str  # the case that tries the group out
    seconds: float  # about what a case takes on two cores: its rounds end then
    is_speed: bool = False  # columns show how many times as fast as the base they are, else how many times as long
    # Each column runs in a process of its own: contrib.amp changes MXNet for the whole process, and networks that
    # share one may slow each other down.
    apart: bool = False


_RESNET20, _SMALL = "cifar_resnet20_v1", "mobilenet0.25"
_TRAINED = (_RESNET20, "resnet18_v1", "resnet50_v1", "mobilenet1.0", "alexnet", "lstm", "bert_small")
_PLACED = ("resnet152_v1", "inceptionv3", "lstm", "bert_small")

GROUPS = {
    "inference": Group("inference, and errors of the logits", inference, tuple(IMAGE_SIZES), _SMALL, 30, True),
    "training": Group("a training step, forward to update", training, _TRAINED, _RESNET20, 60, True, True),
    "trainer-step": Group("the trainer's step alone", trainer_step, ("float32", "float16"), "float32", 15),
    "conversion": Group("converting a model", conversion, ("resnet152_v1",), _SMALL, 30),
    "placement": Group("casts, their bytes, the time of the minimum cut", placement, _PLACED, _SMALL, 10),
}
