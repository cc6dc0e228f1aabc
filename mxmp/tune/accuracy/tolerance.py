"""Whether a network under a policy is as good as in float32, by a metric of its owner's."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, Optional, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet import gluon

from ... import dtypes
from ...devices.processor import read_processor
from ...devices.speed import runs_bfloat16
from ...diagnose.batches import Batches, read_loader
from ...diagnose.subject import CALLS, NetSubject, Subject, SymbolSubject
from ...errors import ConvertError, NonFiniteLossError, TuneError
from ...graph import Graph
from ...policy import Policy
from ..holds import digest


class Tolerance:
    """Tells of policies whether a network's metric under them is within a tolerance of float32's.

    Each metric is measured once: of two policies with the same converted graphs, for inputs of the shapes that
    ``evaluate`` uses first, only one. The network is as it was after each measurement.

    Args:
        net_or_model: As for `search`.
        evaluate: As for `search`.
        tolerance: As for `search`.
        higher_is_better: As for `search`.
        batches: As for `search`.
        ctx: As for `search`.
        for_inference: As for `search`.

    Attributes:
        network: The network.
        for_inference: Whether BatchNorm is folded in what is measured.
        reference: The metric in float32.
        evaluations: How often ``evaluate`` was called.

    Raises:
        TuneError: If ``evaluate`` gives no number, none that is finite in float32, or two in float32 that are further
            apart than the tolerance.
    """

    def __init__(
        self,
        net_or_model: Any,
        evaluate: Callable[[Any], float],
        tolerance: float,
        *,
        higher_is_better: bool = True,
        batches: Optional[Batches] = None,
        ctx: Any = None,
        for_inference: bool = False,
    ) -> None:
        known = _number(tolerance)
        if known is None or not 0 <= known < math.inf:
            raise TuneError(f"tolerance={tolerance!r}: expected a finite number from 0 on, in the unit of the metric.")
        if not callable(evaluate):
            raise TuneError(f"evaluate is a {type(evaluate).__name__}; expected a function of the network.")
        if not isinstance(higher_is_better, bool):
            raise TuneError(f"higher_is_better={higher_is_better!r}: expected True or False.")
        self.tolerance, self.higher_is_better = known, higher_is_better
        if not isinstance(for_inference, bool):
            raise TuneError(f"for_inference={for_inference!r}: expected True or False.")
        self.for_inference, self._owner = for_inference, net_or_model
        self.network = make_network(net_or_model, batches, ctx, for_inference)
        self.evaluations = 0
        self._evaluate = evaluate
        self._metrics: Dict[Tuple[Graph, ...], float] = {}
        self.reference = self._measure_float32()

    def require_measures(self, net_or_model: Any, symbols: Iterable[Any], for_inference: bool) -> None:
        """Raise a TuneError unless it is this network that is measured, with BatchNorm folded or not.

        It is if it is the same object, or has the same operators with their names and attributes; values of parameters
        are not compared.
        """
        if self.for_inference != for_inference:
            raise TuneError(
                f"within: it measures the network with for_inference={self.for_inference}, but it is tuned with "
                f"for_inference={for_inference}; give both the same."
            )
        if self._owner is net_or_model:
            return
        found = {digest([symbol]) for symbol in symbols}
        measured = {digest([symbol]) for symbol in self.network.symbols()}
        if not found <= measured:
            raise TuneError(
                f"within: it measures another network ({_listed(measured)}, expected {_listed(found)}): other "
                f"operators or names. Make the Tolerance of the network that is tuned."
            )

    @property
    def required(self) -> str:
        """What a metric has to be, as text."""
        sign, relation = (-1, "least") if self.higher_is_better else (1, "most")
        bound = self.reference + sign * self.tolerance
        return f"at {relation} {bound:.6g}, as it is {self.reference:.6g} in float32"

    def accepts(self, metric: float) -> bool:
        """Return whether a metric is within the tolerance; one that is not finite is not, a better one is."""
        loss = self.reference - metric if self.higher_is_better else metric - self.reference
        return math.isfinite(metric) and loss <= self.tolerance

    def allows(self, policy: Union[str, Policy]) -> bool:
        """Return whether the network's metric under a policy is within the tolerance.

        Raises:
            TuneError: If ``evaluate`` gives no number.
            PolicyError: If a pattern of the policy matches nothing.
        """
        return self.accepts(self.metric(policy))

    def knows(self, policy: Union[str, Policy]) -> bool:
        """Return whether the metric under a policy is known without a call of ``evaluate``."""
        parsed = Policy.parse(policy)
        return not parsed.is_mixed or self.network.graphs(parsed) in self._metrics

    def metric(self, policy: Union[str, Policy]) -> float:
        """Return the network's metric under a policy; raises as `allows`."""
        parsed = Policy.parse(policy)
        if not parsed.is_mixed:
            return self.reference
        require_runs(parsed)
        key = self.network.graphs(parsed)
        if key not in self._metrics:
            self._metrics[key] = self._measure(parsed)
        return self._metrics[key]

    def _measure(self, policy: Policy) -> float:
        with self.network.under(policy) as candidate:
            self.evaluations += 1
            try:
                value = self._evaluate(candidate)
            except NonFiniteLossError:  # of a trainer in ``evaluate``
                if not policy.is_mixed:
                    raise
                value = math.nan
        number = _number(value)
        if number is None:
            given = "None" if value is None else f"a {type(value).__name__}"
            raise TuneError(f"evaluate gave {given}; expected a number, such as an accuracy or a loss.")
        return number

    def _measure_float32(self) -> float:
        """Return the metric in float32, measured twice: the tolerance has to be beyond its noise."""
        policy = Policy.parse("float32")
        with self.network.watched():
            first = self._measure(policy)
        if not math.isfinite(first):
            raise TuneError(f"evaluate gave {first} in float32; the network is broken before its precision is changed.")
        second = self._measure(policy)
        if not abs(first - second) <= self.tolerance:
            raise TuneError(
                f"evaluate gave {first:.6g} and then {second:.6g} for the same network in float32, which is more apart "
                f"than the tolerance {self.tolerance:.6g}; take the same data and seeds in each call, or a tolerance "
                f"beyond that noise."
            )
        return first


def require_runs(policy: Policy) -> None:
    """Raise a TuneError if this machine cannot run a network under a policy."""
    if policy.compute_dtype == dtypes.BFLOAT16 and not runs_bfloat16():
        raise TuneError(
            f"policy: it computes in bfloat16, and MXNet runs none on this processor ({read_processor().name}). Search "
            f"on one with AVX-512, or with a policy of float16, which is emulated."
        )


def _listed(digests: Iterable[str]) -> str:
    return ", ".join(sorted(digests))


def _number(value: Any) -> Optional[float]:
    """Return a number of Python or numpy as a float (0 for -0), None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    return float(value) + 0.0


def make_network(
    net_or_model: Any, batches: Optional[Batches], ctx: Any, for_inference: bool = False
) -> Subject:
    """Return what a user gave as a network to search; TuneError if it is none."""
    if for_inference and isinstance(net_or_model, (gluon.Block, mx.mod.Module)):
        raise TuneError(
            f"for_inference: BatchNorm is folded in models, not in a {type(net_or_model).__name__}; give its symbol "
            "with its parameters, (symbol, arg_params, aux_params), as mxmp.gluon.export writes them of a net."
        )
    if isinstance(net_or_model, gluon.Block):
        _refuse(net_or_model, batches=batches, ctx=ctx)
        return NetSubject(net_or_model)
    if isinstance(net_or_model, mx.mod.Module):
        _refuse(net_or_model, ctx=ctx)
        return SymbolSubject.of_module(net_or_model).take(_first(batches))
    try:
        symbol, args, aux = net_or_model
    except (TypeError, ValueError):
        raise TuneError(
            f"net_or_model is a {type(net_or_model).__name__}; expected a Gluon net, a bound Module, or a tuple "
            f"(symbol, arg_params, aux_params). Of a BucketingModule give one bucket as a Module."
        ) from None
    return SymbolSubject(symbol, args, aux, ctx, for_inference).take(_first(batches))


def _first(batches: Optional[Batches]) -> Any:
    if batches is None:
        raise ConvertError(
            "batches is missing: give a few batches of inputs, dicts of NDArrays by name or a DataIter, that the "
            "errors of operators are measured on. Only a Gluon net does without: what evaluate calls it with is taken."
        )
    return read_loader(batches, CALLS, "batches")


def _refuse(net_or_model: Any, **given: Any) -> None:
    """Refuse arguments that a network of this kind has no use for."""
    for name, value in given.items():
        if value is not None:
            raise TuneError(
                f"{name} is for a symbol with parameters{' or a Module' if name == 'batches' else ''}; a "
                f"{type(net_or_model).__name__} runs where it is, on what evaluate gives it. Leave {name} out."
            )
