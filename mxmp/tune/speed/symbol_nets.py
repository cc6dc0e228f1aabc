"""Symbols as workloads: in a Module, for training and inference, or as a converted model that is bound."""

from __future__ import annotations

from typing import Any, ContextManager, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ... import dtypes
from ...arrays import to_float32
from ...devices.amx import variable_set
from ...module import Module
from ...module.binding import Conversions
from ...passes.emulate import has_float16
from ...passes.scale_loss import is_loss_head
from ...policy import Policy
from ...report import Decisions
from ...symbol import convert_model, to_graph
from ...symbol.rewrite import on_cpu
from .problem import unwarned
from .stopwatch import Run

Arrays = Mapping[str, mx.nd.NDArray]


class Inputs(NamedTuple):
    """A batch by the names of a symbol's inputs, labels among them."""

    data: Dict[str, mx.nd.NDArray]
    labels: Dict[str, mx.nd.NDArray]

    def batch(self) -> mx.io.DataBatch:
        """Return it as modules want it."""
        data, labels = list(self.data.values()), list(self.labels.values())
        return mx.io.DataBatch(data, labels, provide_data=_describe(self.data), provide_label=_describe(self.labels))

    @property
    def shapes(self) -> Dict[str, Tuple[int, ...]]:
        """The shapes of the data by name."""
        return {name: array.shape for name, array in self.data.items()}

    @property
    def dtypes(self) -> Dict[str, str]:
        """The dtypes of the data by name."""
        return {name: dtypes.canonical(array.dtype) for name, array in self.data.items()}


class ModuleWorkload:
    """A symbol that modules run.

    Args:
        symbol: A float32 symbol.
        params: Values of its parameters and auxiliary states; those that lack are initialized.
        inputs: A batch.
        contexts: Where it runs.
        training: Whether forward and backward are run, or forward alone.
        made: Further options that modules are made with, by the names of their constructor.
        bound: Further options of their ``bind``, for training.
    """

    def __init__(
        self,
        symbol: Any,
        params: Tuple[Arrays, Arrays],
        inputs: Inputs,
        contexts: Sequence[mx.Context],
        training: bool,
        made: Optional[Mapping[str, Any]] = None,
        bound: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self._symbol, self._params, self._inputs = symbol, params, inputs
        self._contexts, self.training = list(contexts), training
        self._made, self._bound = dict(made or {}), dict(bound or {}) if training else {}
        self.shapes, self.dtypes, self.symbols = inputs.shapes, inputs.dtypes, (symbol,)
        self.options = _described({"context": self._contexts, **self._made, **self._bound}, len(self._contexts))
        self.on_cpu = any(context.device_type != "gpu" for context in contexts)

    def decide(self, policy: Policy) -> List[Decisions]:
        """Return what the conversion decides for the batch's shapes."""
        descriptions = [*_describe(self._inputs.data), *_describe(self._inputs.labels)]
        named = {each.name for each in descriptions}
        params = frozenset(self._symbol.list_inputs()) - named - set(self._made.get("state_names") or ())
        with unwarned():
            conversions = Conversions(self._symbol, policy, params, self._contexts, trains=self.training)
            found = conversions.prepare(descriptions)
        return [found.converted.decisions]

    def build(self, policy: Policy) -> Run:
        """Bind a module of its own under a policy."""
        module = self._bind(policy)
        batch = self._inputs.batch()
        graph = to_graph(self._symbol)
        given = not all(is_loss_head(graph.nodes[head.node]) for head in graph.heads)  # these take no gradients
        ones: List[mx.nd.NDArray] = []

        def run() -> None:
            module.forward(batch, is_train=self.training)
            if self.training:
                if given and not ones:  # of the true shapes
                    ones.extend(mx.nd.ones(output.shape, output.ctx) for output in module.get_outputs())
                module.backward(ones or None)

        return run

    def _bind(self, policy: Policy) -> Module:
        data, labels = self._inputs
        made = {"context": self._contexts, **self._made}
        module = Module(self._symbol, list(data), list(labels), policy=policy, loss_scale=None, **made)
        with unwarned(), _without_log():
            module.bind(_describe(data), _describe(labels) or None, for_training=self.training, **self._bound)
        arg_params, aux_params = self._params
        module.init_params(mx.init.Xavier(), dict(arg_params), dict(aux_params), allow_missing=True)
        return module


class ModelWorkload:
    """A symbol with its parameters that is converted, bound and run for inference alone.

    Args:
        symbol: A float32 symbol.
        params: Values of its parameters and auxiliary states.
        inputs: A batch.
        context: Where it runs.
        for_inference: Whether BatchNorm is folded.
    """

    def __init__(
        self, symbol: Any, params: Tuple[Arrays, Arrays], inputs: Inputs, context: mx.Context, for_inference: bool
    ) -> None:
        self._symbol, self._params, self._inputs = symbol, params, inputs
        self._context, self._for_inference = context, for_inference
        self.training = False
        self.shapes, self.dtypes, self.symbols = inputs.shapes, inputs.dtypes, (symbol,)
        self.options: Dict[str, str] = {}
        self.on_cpu = context.device_type != "gpu"

    def decide(self, policy: Policy) -> List[Decisions]:
        """Return what the conversion decides for the batch's shapes."""
        return [self._convert(policy).decisions]

    def build(self, policy: Policy) -> Run:
        """Convert the model under a policy and bind it."""
        executor = self._bind(policy)

        def run() -> None:
            executor.forward(is_train=False)

        return run

    def outputs(self, policy: Policy) -> List[Any]:
        """Return what the model gives for the batch under a policy, in float64."""
        outputs = self._bind(policy).forward(is_train=False)
        return [to_float32(output).asnumpy().astype(np.float64) for output in outputs]

    def _bind(self, policy: Policy) -> Any:
        symbol, arg_params, aux_params = model = self._convert(policy)
        given = {**self._inputs.data, **self._inputs.labels}
        if self.on_cpu and (policy.compute_dtype == dtypes.FLOAT16 or has_float16(model.decisions.facts)):
            symbol = on_cpu(symbol, {name: array.dtype for name, array in given.items()})
        shapes = {name: array.shape for name, array in given.items()}
        types = {name: array.dtype for name, array in [*given.items(), *model.arg_params.items()]}
        with _without_log():
            executor = symbol.simple_bind(self._context, grad_req="null", type_dict=types, **shapes)
        executor.copy_params_from({**arg_params, **given}, aux_params)
        return executor

    def _convert(self, policy: Policy) -> Any:
        given = {**self._inputs.data, **self._inputs.labels}
        shapes = {name: array.shape for name, array in given.items()}
        types = {name: array.dtype for name, array in given.items()}
        return convert_model(self._symbol, *self._params, policy, shapes, types, for_inference=self._for_inference)


def _described(options: Mapping[str, Any], contexts: int) -> Dict[str, str]:
    """Return options of a module as text, those that are not MXNet's defaults: of one context none is said."""
    usual = {"work_load_list": [1] * contexts, "grad_req": "write", "context": options["context"] * (contexts == 1)}
    found = {name: value for name, value in options.items() if value and value != usual.get(name)}
    return {name: _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(each)}" for name, each in sorted(value.items()))
    return ", ".join(map(_text, value)) if isinstance(value, (list, tuple)) else str(value)


def _describe(arrays: Arrays) -> List[mx.io.DataDesc]:
    return [mx.io.DataDesc(name, array.shape, array.dtype) for name, array in arrays.items()]


def _without_log() -> ContextManager[None]:
    """Return a context in which MXNet writes no line on stderr for each network that is bound."""
    return variable_set("MXNET_SUBGRAPH_VERBOSE", "0")
