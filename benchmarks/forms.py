"""The forms in which a network infers: float32, contrib.amp's and mxmp's, of the Symbolic API and of Gluon."""

from __future__ import annotations

import tempfile
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.contrib import amp

import mxmp
from benchmarks.common import undecided_inputs
from benchmarks.comparison import FLOAT32, NO_BFLOAT16, OWN, PEER
from benchmarks.requirements import GLUON, SYMBOLIC
from benchmarks.zoo import Model
from mxmp import Policy, dtypes
from mxmp.symbol import convert_model, on_cpu

Run = Callable[[], mx.nd.NDArray]
"""Infers once, waits, and returns the logits."""

STATIC = {"static_alloc": True, "static_shape": True}
FUSED = {"backend": "MKLDNN", **STATIC}


class Form(NamedTuple):
    """One way to run a network.

    Attributes:
        front: `SYMBOLIC` or `GLUON`.
        who: `FLOAT32` (MXNet alone), `PEER` or `OWN`.
        title: What tells it from the other forms of its front.
        dtype: What its convolutions compute in.
        build: Makes it of a network.
    """

    front: str
    who: str
    title: str
    dtype: str
    build: Callable[[Model], Run]


def forms(policy: Policy) -> List[Form]:
    """Return every form, mxmp's under a policy: as it is, and with its weights stored in low precision.

    What contrib.amp gives at its best has stored weights too, and in Gluon a graph that MXNet fuses. mxmp's at its
    best is a frozen net; what it exports runs in plain MXNet with `FUSED`.
    """
    float32 = Policy.parse("float32")
    plain = [
        Form(SYMBOLIC, FLOAT32, "float32", dtypes.FLOAT32, lambda model: _bind(model, (model.symbol, *model.params()))),
        _own("mxmp float32, folded", float32, for_inference=True),
        Form(GLUON, FLOAT32, "float32", dtypes.FLOAT32, lambda model: _call(model.copy(), model, STATIC)),
        Form(GLUON, FLOAT32, "float32, fused", dtypes.FLOAT32, lambda model: _call(model.copy(), model, FUSED)),
        _frozen("mxmp float32, frozen", float32),
        _exported("mxmp float32, exported", float32),
    ]
    return [*plain, *_low_forms(policy)] if policy.is_mixed else plain


def _low_forms(policy: Policy) -> List[Form]:
    low = policy.compute_dtype
    stored = Policy.parse(policy, param_dtype=low)
    found = [
        _peer("contrib.amp", low),
        _peer("contrib.amp, stored", low, cast_optional_params=True),
        _own("mxmp", policy),
        _own("mxmp, stored", stored),
        _own("mxmp, folded", stored, for_inference=True),
        _peer_net("contrib.amp", low, {}),
        _peer_net("contrib.amp, stored, fused", low, FUSED, cast_optional_params=True),
        _own_net("mxmp", policy, STATIC),
        _own_net("mxmp, stored", stored, STATIC),
        _own_net("mxmp, stored, fused", stored, FUSED),
        _frozen("mxmp, frozen", stored),
        _exported("mxmp, exported", stored),
    ]
    return [form for form in found if form.title != "mxmp" or policy != stored]


def _peer(title: str, dtype: str, **options: Any) -> Form:
    def build(model: Model) -> Run:
        return _bind(model, amp.convert_model(model.symbol, *model.params(), target_dtype=dtype, **options))

    return Form(SYMBOLIC, PEER, title, dtype, build)


def _own(title: str, policy: Policy, **options: Any) -> Form:
    def build(model: Model) -> Run:
        shapes = {"data": model.images.shape}
        symbol, *params = convert_model(model.symbol, *model.params(), policy, shapes=shapes, **options)
        emulated = policy.compute_dtype == dtypes.FLOAT16
        return _bind(model, (on_cpu(symbol) if emulated else symbol, *params))

    return Form(SYMBOLIC, OWN, title, policy.compute_dtype, build)


def _peer_net(title: str, dtype: str, flags: Dict[str, Any], **options: Any) -> Form:
    def build(model: Model) -> Run:
        net = model.copy()
        net.hybridize()
        net(model.images[:1]).wait_to_read()  # contrib.amp wants a net that has its graph
        with undecided_inputs():
            net = amp.convert_hybrid_block(net, target_dtype=dtype, ctx=mx.cpu(), **options)
        return _call(net, model, flags)

    return Form(GLUON, PEER, title, dtype, build)


def _own_net(title: str, policy: Policy, flags: Dict[str, Any]) -> Form:
    def build(model: Model) -> Run:
        return _call(mxmp.gluon.convert(model.copy(), policy), model, flags)

    return Form(GLUON, OWN, title, policy.compute_dtype, build)


def _frozen(title: str, policy: Policy) -> Form:
    def build(model: Model) -> Run:
        return _call(mxmp.gluon.freeze(model.copy(), policy, {"data": model.images.shape}), model, {})

    return Form(GLUON, OWN, title, policy.compute_dtype, build)


def _exported(title: str, policy: Policy) -> Form:
    """Return the form that plain MXNet runs: files of a frozen net, loaded with one line of flags."""

    def build(model: Model) -> Run:
        net = mxmp.gluon.convert(model.copy(), policy)
        net(model.images).wait_to_read()  # which tells shapes, as `freeze` is told them
        with tempfile.TemporaryDirectory() as folder, undecided_inputs():
            files = mxmp.gluon.export(net, f"{folder}/net", for_inference=True)
            return _call(gluon.SymbolBlock.imports(files[0], ["data"], files[1]), model, FUSED)

    return Form(GLUON, OWN, title, policy.compute_dtype, build)


def _bind(model: Model, converted: Tuple[Any, Dict[str, Any], Dict[str, Any]]) -> Run:
    """Return a run of a symbol that is bound: for inference MXNet fuses it by itself."""
    symbol, args, aux = converted
    executor = symbol.bind(mx.cpu(), {**args, "data": model.images}, aux_states=aux, grad_req="null")

    def run() -> mx.nd.NDArray:
        (logits,) = executor.forward(is_train=False)
        logits.wait_to_read()
        return logits

    return run


def _call(net: Any, model: Model, flags: Dict[str, Any]) -> Run:
    """Return a run of a net, hybridized if there are flags for it."""
    if flags:
        net.hybridize(**flags)

    def run() -> mx.nd.NDArray:
        logits = net(model.images)
        logits.wait_to_read()
        return logits

    return run


def missing(form: Form, bfloat16: bool) -> Optional[str]:
    """Return why a form cannot run on this machine's CPU, None if it can.

    Args:
        form: The form.
        bfloat16: Whether MXNet runs bfloat16 here.
    """
    if form.dtype == dtypes.BFLOAT16 and not bfloat16:
        return NO_BFLOAT16
    if form.dtype == dtypes.FLOAT16 and (form.who == PEER or form.title == "mxmp, exported"):
        return "MXNet has no float16 products on a CPU, and only mxmp emulates them"
    return None


def error(logits: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    """Return the root mean square of the difference, as a share of that of the reference."""
    difference = logits.astype(np.float64) - reference
    return float(np.sqrt(np.mean(difference**2) / np.mean(reference.astype(np.float64) ** 2)))


def to_numpy(array: mx.nd.NDArray) -> Any:
    """Return an array as float32: numpy does not know bfloat16."""
    return (array if array.dtype == np.float32 else mx.nd.amp_cast(array, dtype="float32")).asnumpy()
