"""Tuned plans: a policy with its times and what they hold for; stored, and used again where that holds.

A plan holds for the processor and what of it is used, MXNet's build, the device, the shapes and dtypes of the inputs,
the network (its operators with names and attributes), and how it is run.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Dict, Iterable, List, Mapping, Optional, Tuple

import mxnet as mx
from mxnet import gluon

from ..devices.check import read_gpus
from ..devices.speed import Machine, read_machine
from ..display import NUMBER, Column, Facts, Notes, Record, Section, Table
from ..dtypes import canonical
from ..errors import CheckpointError, TuneError
from ..passes import EraseCasts
from ..policy import Policy
from ..symbol import to_graph
from .candidates import FLOAT32, UNTUNED, Change
from .race import Measured
from .workload import Forward, Workload, read_workload

TRAINING, INFERENCE = "training", "inference"
OBJECTIVES = (TRAINING, INFERENCE)
CPU = "CPU"

_DIGITS = 16  # of the digest: 64 bits
_NAMES = 3  # of operators that are listed
_OVERRIDES = 4  # of a policy that are listed


@dataclass(frozen=True)
class HoldsFor:
    """The machine, network and inputs that the times of a plan hold for.

    Attributes:
        machine: Processor, cores, AMX, threads and MXNet's build.
        device: 'CPU', or the names of the GPUs.
        shapes: Shapes of the inputs by name.
        network: A digest of the float32 network's operators, their names and attributes.
        dtypes: Dtypes of the inputs by name.
        options: How the network is run, by name, as far as that is not MXNet's default: the arguments of ``hybridize``,
            or of a Module and its ``bind``.
    """

    machine: Machine
    device: str
    shapes: Dict[str, Tuple[int, ...]]
    network: str
    dtypes: Dict[str, str]
    options: Dict[str, str]

    def __str__(self) -> str:
        """Return it in one line."""
        others = {name: f" {dtype}" for name, dtype in self.dtypes.items() if dtype != FLOAT32}
        shapes = ", ".join(f"{name}{others.get(name, '')} {shape}" for name, shape in self.shapes.items())
        options = [f"{name}={value}" for name, value in self.options.items()]
        return "; ".join([str(self.machine), f"on {self.device}", shapes, *options, f"network {self.network}"])

    def differences(self, here: HoldsFor) -> List[str]:
        """Return a phrase for each difference: the value found, and that expected."""
        expected, found = self._facts(), here._facts()
        # A name that only one side has differs too: an input less, an option more.
        names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
        phrases = [f"{n}: found {_text(found.get(n))}, expected {_text(expected.get(n))}" for n in names]
        if here.network != self.network:
            phrases.append(f"network: found another one ({here.network}, expected {self.network})")
        return phrases

    def _facts(self) -> Dict[str, Any]:
        shapes = {f"shape of {name}": shape for name, shape in self.shapes.items()}
        types = {f"dtype of {name}": dtype for name, dtype in self.dtypes.items()}
        return {**asdict(self.machine), "device": self.device, **shapes, **types, **self.options}


def _text(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return f"{', '.join(value):.200}"
    return "none" if value is None else f"{value!s:.200}"


@dataclass(frozen=True)
class TuneResult(Record):
    """A tuned policy with its measurements; ``print`` shows them as a table.

    Attributes:
        policy: The policy to convert with. It was measured faster than float32 and than the untuned policy by more
            than the noise; or it is the untuned policy, faster than float32; or it is float32.
        untuned: The policy that tuning began with.
        objective: 'training' or 'inference'.
        for_inference: Whether the network was frozen (`mxmp.gluon.freeze`): BatchNorm folded, weights stored low.
        fastest: The name of the candidate that the policy is.
        is_fused: Of a network that was frozen, whether it was fastest with oneDNN's fusion, as `freeze` has it. If
            not, ``hybridize(static_alloc=True, static_shape=True)`` of the frozen block undoes that.
        seconds: Medians of the last measurement: 'float32', 'untuned' and, if another candidate was the best, that.
        candidates: All measurements.
        changes: The operators whose precision differs from the untuned policy's, unless the policy is float32.
        notes: Notes for the user: that the machine is noisy, that the race was interrupted.
        proved: Whether the last measurement was made; if not, the policy is the best of the race.
        holds_for: The machine, shapes and network that the times hold for.
    """

    _kind: ClassVar[str] = "tuned plan"
    _title: ClassVar[str] = "mxmp tune"
    _error = TuneError

    policy: Policy
    untuned: Policy
    objective: str
    for_inference: bool
    fastest: str
    is_fused: bool
    seconds: Dict[str, float]
    candidates: Tuple[Measured, ...]
    changes: Tuple[Change, ...]
    notes: Tuple[str, ...]
    proved: bool
    holds_for: HoldsFor

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective is {self.objective!r}; expected {' or '.join(map(repr, OBJECTIVES))}.")

    @property
    def speedup(self) -> Optional[float]:
        """How many times as fast as float32 the policy was in the last measurement; None if that was not made."""
        return self._speed(FLOAT32, self.fastest)

    def _speed(self, base: str, name: str) -> Optional[float]:
        """Return how many times as fast as one candidate another was; None if one of them was not measured last."""
        seconds = self.seconds.get(name)
        return self.seconds[base] / seconds if seconds and base in self.seconds else None

    def _sections(self) -> List[Section]:
        titles = ("ms", "times float32's speed", "times the untuned speed")
        columns = [Column("plan"), *(Column(title, NUMBER) for title in titles)]
        rows = []
        for name, seconds in self.seconds.items():
            title = f"{name}, returned" if name == self.fastest else name
            rows.append((title, 1e3 * seconds, *(self._speed(base, name) for base in (FLOAT32, UNTUNED))))
        table = Table("the last measurement", columns, rows, "plans")
        return [Section("What is fastest here", [table, Facts(self._facts()), Notes(self.notes)])]

    @property
    def _lead(self) -> str:
        return f"{self.objective}; {_short(self.untuned)}"

    def _facts(self) -> List[Tuple[str, str]]:
        facts = [("policy", _short(self.policy) if self.policy.is_mixed else FLOAT32)]
        if self.for_inference:
            use = "mxmp.gluon.freeze(net, policy), or convert_model(..., for_inference=True)"
            undo = ", then hybridize(static_alloc=True, static_shape=True), which undoes the fusion"
            facts.append(("to be used by", use + undo * (not self.is_fused)))
        for change in self.changes:
            names, more = ", ".join(change.names[:_NAMES]), len(change.names) - _NAMES
            text = f"{len(change.names)} {change.op} in {change.dtype}: {names}"
            facts.append(("changed", text + (f" and {more} more" if more > 0 else "")))
        for candidate in self.candidates:
            if candidate.won and candidate.ratio is not None:
                text = f"{candidate.name}: {1 - candidate.ratio:.0%} less time than the best before"
                facts.append(("won a trial", text))
        failed = sum(candidate.seconds is None for candidate in self.candidates)
        tried = f"{len(self.candidates)} candidates besides float32" + (f"; {failed} did not run" if failed else "")
        return [*facts, ("tried", tried), ("holds for", str(self.holds_for))]

    def __repr__(self) -> str:
        """Return the policy and what it won."""
        speedup = "unknown" if self.speedup is None else f"{self.speedup:.2f}"
        policy = _short(self.policy)
        return f"{type(self).__name__}(policy={policy!r}, objective={self.objective!r}, speedup={speedup})"


def _short(policy: Policy) -> str:
    """Return a policy as text; of many overrides by name the first, and how many more there are."""
    more = len(policy.names) - _OVERRIDES
    if more <= 0:
        return str(policy)
    return f"{policy.replace(names=policy.names[:_OVERRIDES])} and {more} more names"


# ------------------------------------------------------------------ what holds here


def holds_here(workload: Workload) -> HoldsFor:
    """Return what times hold for that are measured now."""
    network = digest(workload.subject.symbols())
    shapes = {name: array.shape for name, array in workload.inputs.items()}
    dtypes = {name: canonical(array.dtype) for name, array in workload.inputs.items()}
    return HoldsFor(read_machine(), _device(workload.on_cpu), shapes, network, dtypes, dict(workload.options))


def _device(on_cpu: bool) -> str:
    return CPU if on_cpu else ", ".join(sorted({gpu.name for gpu in read_gpus()})) or "GPU"


def digest(symbols: Iterable[Any]) -> str:
    """Return a digest of networks: of their operators in their order, with names and attributes, without casts.

    What MXNet and mxmp note about a node (``__dtype__``) does not count, nor do the names of parameters and inputs.
    """
    # Parameters' names are left out: a checkpoint may have been saved by another net of the same operators.
    sha = hashlib.sha256()
    for symbol in symbols:
        for node in EraseCasts()(to_graph(symbol)).graph.operators():
            attrs = [pair for pair in node.attrs if not pair[0].startswith("__")]
            sha.update(json.dumps([node.op, node.name, attrs]).encode())
    return sha.hexdigest()[:_DIGITS]


# ------------------------------------------------------------------ plans in files


def load(
    path: str,
    net_or_model: Any = None,
    batches: Any = None,
    *,
    shapes: Optional[Mapping[str, Any]] = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    forward: Optional[Forward] = None,
) -> TuneResult:
    """Return the tuned plan in a file, if it holds here.

    Processor, AMX, the environment variables of threads, and MXNet's build are compared always; network, shapes and
    dtypes if they are given, and with batches how the network is run. ``load(path).policy`` is for `convert`.

    Args:
        path: A file that `TuneResult.save`, ``tune(..., store=path)`` or ``mxmp tune -o`` wrote.
        net_or_model: The network that it is to be used for, as for `tune`, or a symbol alone.
        batches: Batches, as for `tune`; of a Gluon net they are needed to see its graph.
        shapes: The shapes of the inputs by name, in place of batches; those that are not named count as the plan's, and
            those of others, as of labels, do not count.
        dtypes: Dtypes of inputs by name, likewise.
        forward: As for `tune`.

    Raises:
        TuneError: If the plan does not hold here; the message names all that differs. If both batches and shapes or
            dtypes are given.
        CheckpointError: If the file is missing, damaged, or no plan.
        DtypeError: If one of the dtypes is unknown.
    """
    for name, argument in (("shapes", shapes), ("dtypes", dtypes)):
        if batches is not None and argument is not None:
            raise TuneError(f"{name}: the batches tell the {name} of the inputs already; give one of the two.")
        if argument is not None and not isinstance(argument, Mapping):
            raise TuneError(f"{name} is {argument!r}; expected {name} by the names of inputs, a dict.")
    plan = TuneResult.load(file_name("path", path))
    if batches is not None:
        training = plan.objective == TRAINING
        here = holds_here(read_workload(net_or_model, batches, training, plan.for_inference, forward))
    else:
        here = _told(plan.holds_for, net_or_model, shapes or {}, dtypes or {})
    different = plan.holds_for.differences(here)
    if different:
        raise TuneError(f"{path}: the plan does not hold here. {'; '.join(different)}. Tune again here.")
    return plan


def _told(plan: HoldsFor, network: Any, shapes: Mapping[str, Any], dtypes: Mapping[str, Any]) -> HoldsFor:
    """Return what is here, of the network and of the plan's inputs as far as it is told, else as the plan has it."""
    if isinstance(network, gluon.Block):
        raise TuneError("batches: give one, with which the net is called once: its graph is not known before.")
    if network is not None and not isinstance(network, mx.sym.Symbol):
        network = network.symbol if hasattr(network, "symbol") else tuple(network)[0]
    try:
        sizes = {name: tuple(map(int, shapes[name])) for name in plan.shapes if name in shapes}
    except (TypeError, ValueError):
        raise TuneError(f"shapes is {shapes!r}; expected shapes by the names of inputs, {{'data': (8, 3)}}.") from None
    types = {name: canonical(dtypes[name]) for name in plan.dtypes if name in dtypes}
    # How the network is run is not told without a batch, and counts as the plan's.
    rest = plan.network if network is None else digest([network]), {**plan.dtypes, **types}, plan.options
    return HoldsFor(read_machine(), _device(plan.device == CPU), {**plan.shapes, **sizes}, *rest)


def file_name(argument: str, path: Any) -> str:
    """Return a path as text, or raise a TuneError that names the argument."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise TuneError(f"{argument} is a {type(path).__name__}; expected the name of a file.") from None


def stored_plan(
    path: str, holds_for: HoldsFor, searched: bool, **fields: Any
) -> Tuple[Optional[TuneResult], List[str]]:
    """Return the plan in a file if it holds for what is here and was tuned for the same, else None and what differs.

    Args:
        path: The file; one that is not there holds no plan.
        holds_for: What is here.
        searched: Whether a search within a tolerance may have added name overrides to the policy that it began with.
        **fields: The untuned policy and other fields of the plan, as they are asked for.

    Raises:
        CheckpointError: If the file is something else than a plan, which is not written over.
    """
    different: List[str] = []
    if os.path.lexists(path):
        try:
            plan = TuneResult.load(path)
        except CheckpointError as e:
            raise CheckpointError(f"{e} Nothing is written over it: give another file to store, or remove this.") from e
        own = {name: getattr(plan, name) for name in fields}
        if searched:  # its names are the search's result, not what was asked for
            own[UNTUNED] = plan.untuned.replace(names=fields[UNTUNED].names)
        others = [name for name in fields if fields[name] != own[name]]
        different = [f"{name}: found {fields[name]}, expected {own[name]}" for name in others]
        different += plan.holds_for.differences(holds_for)
        if not different:
            return plan, []
    return None, different


def require_writable(path: str) -> None:
    """Raise a CheckpointError, before anything is measured, if a plan cannot be written to a file."""
    # The folder too: what is written takes a new file's place (`files.saving`).
    file = os.path.realpath(path)
    for place in (os.path.dirname(file), file):
        if os.path.lexists(place) and not os.access(place, os.W_OK):
            raise CheckpointError(f"{path}: {place} is write-protected; give another file to store.")
