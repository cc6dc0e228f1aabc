"""A symbol with parameters, and a Module: a new one under each policy."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, ContextManager, Iterable, Iterator, List, Mapping, Optional, Tuple

import mxnet as mx

from ... import dtypes
from ...errors import ConvertError
from ...module import Module
from ...mxnet_private import ModuleBase, made_with
from ...policy import Policy
from ...report import Decisions
from ...symbol import ConvertedModel, convert_graph, convert_model, on_cpu
from ..batches import Batches, fill_inputs, inputs_of, read_loader
from .network import BATCHES, GraphBatches, Network


class Model(Network):
    """A symbol with its parameters. ``evaluate`` gets a `ConvertedModel` that runs on the context given.

    Its arrays are copies, and float16 is emulated on a CPU. ``for_inference`` says whether BatchNorm is folded.
    """

    def __init__(
        self,
        sym: Any,
        args: Mapping[str, Any],
        aux: Mapping[str, Any],
        batches: Any,
        ctx: Any,
        count: int = BATCHES,
        for_inference: bool = False,
    ) -> None:
        super().__init__()
        self._ctx, self._for_inference = ctx or mx.cpu(), for_inference
        self._last: Optional[Tuple[Policy, ConvertedModel]] = None
        plain = convert_model(sym, args, aux, "O0")  # without casts, should it be converted
        self._given, self._model = (sym, args, aux), plain
        self._batches = first_batches(plain, batches, count)
        inputs = [name for name in plain.symbol.list_arguments() if name not in plain.arg_params]
        values = {name: self._batches[0][name] for name in inputs}
        self._shapes = {name: array.shape for name, array in values.items()}
        types = {name: dtypes.canonical(array.dtype) for name, array in values.items()}
        self._dtypes = {name: dtype for name, dtype in types.items() if dtype != dtypes.FLOAT32}
        if for_inference:
            folded = self._convert(Policy())
            self._batches = [{**batch, **folded.arg_params} for batch in self._batches]

    def symbols(self) -> List[Any]:
        """Return the one symbol."""
        return [self._model.symbol]

    def watched(self) -> ContextManager[None]:
        """Note nothing: the batches are given."""
        return contextlib.nullcontext()

    def _converted(self, policy: Policy) -> ConvertedModel:
        """Return the model under a policy; the last one is known."""
        if self._last is None or self._last[0] != policy:
            self._last = policy, self._convert(policy)
        return self._last[1]

    def _convert(self, policy: Policy) -> ConvertedModel:
        return convert_model(
            *self._given, policy, self._shapes, self._dtypes, for_inference=self._for_inference
        )

    @contextlib.contextmanager
    def under(self, policy: Policy) -> Iterator[Any]:
        """Give the model converted, with parameters of its own."""
        model = self._converted(policy)
        runs = model.symbol if self._ctx.device_type == "gpu" else on_cpu(model.symbol, self._dtypes)
        args, aux = (
            {name: array.copyto(self._ctx) for name, array in params.items()}
            for params in (model.arg_params, model.aux_params)
        )
        yield replace(model, symbol=runs, arg_params=args, aux_params=aux)

    def _decide(self, policy: Policy) -> List[Decisions]:
        """Return the decisions on the symbol, for inputs of the shapes of the first batch."""
        return [self._converted(policy).decisions]

    def comparisons(self, policy: Policy) -> Iterable[GraphBatches]:
        """Return the one comparison, on the batches given."""
        numbers = list(range(len(self._batches)))
        return [GraphBatches(self._converted(policy).decisions, self._ctx, list(self._batches), numbers)]


class BoundModule(Network):
    """A Module that is bound and has parameters. ``evaluate`` gets an `mxmp.module.Module` like it."""

    def __init__(self, module: mx.mod.Module, batches: Any, count: int = BATCHES) -> None:
        super().__init__()
        if not (module.binded and module.params_initialized):
            kind = type(module).__name__
            raise ConvertError(f"the {kind} is not bound, or has no parameters; call bind, set_params.")
        self._module = module
        self._args, self._aux = module.get_params()
        self._descs = [*module.data_shapes, *(module.label_shapes or ())]
        plain = convert_model(module.symbol, self._args, self._aux, "O0")
        self._batches = first_batches(plain, batches, count)

    def symbols(self) -> List[Any]:
        """Return the one symbol."""
        return [self._module.symbol]

    def watched(self) -> ContextManager[None]:
        """Note nothing: shapes are bound, batches are given."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def under(self, policy: Policy) -> Iterator[Any]:
        """Give a Module made and bound as the owner's is, with the same parameters."""
        module = self._module
        names = module.data_names, module.label_names
        made = Module(module.symbol, *names, module.logger, policy=policy, **made_with(module))
        made.bind(
            module.data_shapes,
            module.label_shapes,
            for_training=module.for_training,
            inputs_need_grad=module.inputs_need_grad,
            grad_req=ModuleBase.mx_grad_req(module),
        )
        made.set_params(self._args, self._aux)
        yield made

    def _decide(self, policy: Policy) -> List[Decisions]:
        """Return the decisions on the symbol, for the shapes that are bound."""
        shapes = {each.name: tuple(each.shape) for each in self._descs}
        types = {each.name: dtypes.canonical(each.dtype) for each in self._descs}
        params = frozenset((*self._args, *self._aux))
        return [convert_graph(self._module.symbol, policy, shapes, types, params).decisions]

    def comparisons(self, policy: Policy) -> Iterable[GraphBatches]:
        """Return the one comparison, on the batches given, on the first context."""
        context = ModuleBase.mx_context(self._module)[0]
        numbers = list(range(len(self._batches)))
        return [GraphBatches(each, context, list(self._batches), numbers) for each in self.decisions(policy)]


def first_batches(model: ConvertedModel, batches: Optional[Batches], count: int) -> List[Mapping[str, Any]]:
    """Return the values of all inputs for the first batches that a user gives; labels may be missing in them."""
    if batches is None:
        raise ConvertError(
            "batches is missing: give a few batches of inputs, dicts of NDArrays by name or a DataIter, that the "
            "errors of operators are measured on. Only a Gluon net does without: what evaluate calls it with is taken."
        )
    names = inputs_of(model.symbol, {**model.arg_params, **model.aux_params})
    return [fill_inputs(model, batch.by_name(names)) for batch in read_loader(batches, count, "batches")]
