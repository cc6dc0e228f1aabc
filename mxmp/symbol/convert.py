"""The functions that users of the Symbolic API call: conversion of a symbol, a model or a checkpoint.

All three use the same steps. `arguments` checks the arguments, and `rewrite` converts the graph. `params` stores its
parameters, and `checkpoint` reads and writes files. ``mxmp convert`` calls `convert_checkpoint`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from ..checkpoint import check_out_prefix, checkpoint_files
from ..devices.auto import parse_policy
from ..devices.check import require_bfloat16
from ..devices.processor import read_processor
from ..dtypes import BFLOAT16
from ..errors import ConvertError
from ..passes.base import marked_blocks
from ..passes.cpu.fit import find_fit
from ..passes.cpu.frozen import find_norms, low_norms, merge_windows
from ..policy import Policy, PolicyChanges
from ..report import Decisions, Report
from .arguments import Model, PolicyLike, beyond_range, check_params, make_model, params_and_inputs
from .checkpoint import load_checkpoint, naming_files, save_checkpoint
from .for_inference import fit_params, fold_model, merge_params, write_norms_of
from .inference import from_graph, to_graph
from .params import Change, convert_with_params, low_dtypes, require_matches, store, total_bytes, widened
from .rewrite import convert_graph

if TYPE_CHECKING:
    from typing_extensions import Unpack

_NONE: Tuple[str, ...] = ()


@dataclass(frozen=True)
class ConvertedModel:
    """A converted model; unpacks as ``symbol, arg_params, aux_params``.

    Attributes:
        symbol: The converted symbol, which plain MXNet runs.
        arg_params: Its arguments, in the dtypes that it wants.
        aux_params: Its auxiliary states.
        decisions: The source of the report.
        changes: The parameters whose values the low precision dtype could not hold: how many were
            clamped or became zero.
        out_of_range: Names of the parameters with values beyond its range whose readers stay in float32. Either the
            policy asks for that, or other readers read the parameter in float32 too.
        param_bytes: Bytes of all parameters, (before, after).
        widened: The low precision dtype that float32 parameters were stored in before, by name; their
            values stay rounded to it.
        padded: Names of the layers that have more channels, of zeros, because a kind of processor has fast kernels for
            that number.
    """

    symbol: Any
    arg_params: Dict[str, Any]
    aux_params: Dict[str, Any]
    decisions: Decisions
    changes: Tuple[Change, ...]
    out_of_range: Tuple[str, ...]
    param_bytes: Tuple[int, int]
    widened: Dict[str, str]
    padded: Tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        """Unpack as MXNet's own functions return a model."""
        return iter((self.symbol, self.arg_params, self.aux_params))

    @property
    def report(self) -> Report:
        """The precision of each operator, and why."""
        report = self.decisions.report
        if not self.padded:
            return report
        note = f"{len(self.padded)} layers have channels of zeros, as '{self.padded[0]}', because that is faster here"
        return replace(report, notes=(*report.notes, f"{note}: the parameters of this model are larger."))

    def __repr__(self) -> str:
        """Return the class, the symbol and the counts of parameters, without their values."""
        counts = f"arguments={len(self.arg_params)}, auxiliary_states={len(self.aux_params)}"
        return f"{type(self).__name__}({self.symbol!r}, {counts}, policy={self.report.policy!r})"


def convert_symbol(
    sym: Any,
    policy: PolicyLike = "O1",
    shapes: Optional[Any] = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    data_names: Optional[Sequence[str]] = None,
    ranges: Optional[Mapping[str, float]] = None,
    **changes: Unpack[PolicyChanges],
) -> Any:
    """Return a symbol converted to mixed precision; the given one is not changed.

    Args:
        sym: A float32 network, or one that mxmp converted before, to which the new policy then
            applies in place of the old one.
        policy: A policy or its text, such as 'O1', 'mixed_bfloat16' or 'O2,name:fc*=float32'; 'auto' for the one that
            is fastest on this machine.
        shapes: Shapes of inputs, a dict or pairs as in ``Module.data_shapes``. With them casts move the fewest bytes.
            Without them there are the fewest casts. Operators that sum in low precision are then float32, because there
            may be too many terms.
        dtypes: Dtypes of inputs that are not float32 and do not declare theirs.
        data_names: Names of the inputs. All other variables are parameters, which a policy such as
            'O2' declares in low precision. Unless given, inputs are those that ``shapes`` names and
            labels; without shapes parameters are known by their names ('weight', 'bias', ...). The values of inputs are
            narrowed only for operators that gain from it. Without shapes and ``data_names`` only labels count as
            inputs.
        ranges: Largest magnitudes of outputs by name, as ``mxmp.diagnose.measure_ranges`` has them. The
            operators that give or read values near the end of the dtype's range, or beyond it, stay in
            float32.
        **changes: Fields of the policy that overrule it, such as ``output_dtype='float16'``.

    Returns:
        A symbol of the same inputs and outputs, their names, order and dtypes included.

    Raises:
        ConvertError: If ``sym`` is no symbol.
        InferenceError: If the network does not type-check by itself; the message names the node.
        PolicyError: If the policy does not parse, or one of its patterns matches nothing.
    """
    if "for_inference" in changes:
        raise ConvertError(
            "convert_symbol has no option for_inference, because BatchNorm is folded into the values of one network's "
            "parameters; give symbol and parameters to convert_model(..., for_inference=True)."
        )
    model = make_model(sym, shapes, dtypes, ranges)
    parsed = parse_policy(policy, **changes)
    params, inputs = params_and_inputs(sym, model.shapes, data_names)
    beyond = beyond_range(model.ranges, parsed)
    converted = convert_graph(
        sym, parsed, model.shapes, model.dtypes, params, out_of_range=beyond, final=True, inputs=inputs
    )
    require_matches(parsed, [converted])
    return converted.symbol


def convert_model(
    sym: Any,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    policy: PolicyLike = "O1",
    shapes: Optional[Any] = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    ranges: Optional[Mapping[str, float]] = None,
    for_inference: bool = False,
    **changes: Unpack[PolicyChanges],
) -> ConvertedModel:
    """Return a model converted to mixed precision: its symbol, and its parameters to go with it.

    Where the policy stores parameters in low precision ('O2', 'float16'), those that only low
    precision operators read are rounded to nearest even. Values beyond the dtype's range are
    clamped, or their readers stay in float32, as the policy's ``out_of_range`` says; values that
    become zero are counted. The dicts and arrays given are not changed.

    Args:
        sym: The symbol.
        arg_params: Its arguments, NDArrays by name.
        aux_params: Its auxiliary states, NDArrays by name.
        policy: A policy or its text; 'auto' for the one that is fastest where the parameters are.
        shapes: Shapes of inputs, as for ``convert_symbol``.
        dtypes: Dtypes of inputs, as for ``convert_symbol``.
        ranges: Largest magnitudes of outputs by name, as for ``convert_symbol``.
        for_inference: Whether the model will only infer. Then BatchNorm behind a convolution, a transposed convolution
            or a dense layer is folded into its weight and bias. This is done in float32, before these are rounded.
            Dropout is left out. The model does not train any more.
        **changes: Fields of the policy that overrule it.

    Raises:
        ConvertError: If the parameters do not fit the symbol; the message names them. Also if the policy uses
            bfloat16 and parameters are on a GPU, for which MXNet has no bfloat16 kernels.
        InferenceError: If the network does not type-check by itself.
        PolicyError: If the policy does not parse, or one of its patterns matches nothing.
    """
    parsed = parse_policy(policy, _contexts(arg_params, aux_params), **changes)
    model = make_model(sym, shapes, dtypes, ranges)
    return convert_prepared(model, arg_params, aux_params, parsed, for_inference)


def convert_prepared(
    model: Model,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    policy: Policy,
    for_inference: bool = False,
    check: bool = True,
    blocks: Sequence[str] = (),
) -> ConvertedModel:
    """Return a model converted whose inputs and policy are checked already; errors are those of `convert_model`.

    Args:
        model: The symbol, and the known facts about its inputs.
        arg_params: Its arguments.
        aux_params: Its auxiliary states.
        policy: The policy.
        for_inference: Whether the model will only infer.
        check: Whether to check the parameters, and that each of the policy's patterns matches an operator; of a Gluon
            net both are known.
        blocks: The paths and prefixes of the blocks of the net that it is from, by which the policy may name them.
    """
    if check:
        check_params(model.symbol, arg_params, aux_params, model.shapes)
    require_bfloat16(policy.compute_dtype, _contexts(arg_params, aux_params), "arg_params")
    args, aux = widened(model.symbol, dict(arg_params)), dict(aux_params)
    bytes_before = total_bytes(args) + total_bytes(aux)
    marked = marked_blocks(to_graph(model.symbol)) if blocks else ()
    if for_inference:
        model, args, aux = fold_model(model, args, aux)
    converted, out_of_range = convert_with_params(model, args, aux, policy)
    kind = read_processor().kind if for_inference and policy.compute_dtype == BFLOAT16 else None
    norms = find_norms(to_graph(model.symbol), frozenset({**args, **aux}), kind) if kind else ()
    low = low_norms(converted.graph, converted.facts) if norms else frozenset()
    if any(norm.name in low for norm in norms):  # known only once the policy has decided
        model, args, aux = write_norms_of(model, args, aux, [norm for norm in norms if norm.name in low])
        converted, out_of_range = convert_with_params(model, args, aux, policy)
    if check:
        require_matches(policy, [converted], blocks, marked)
    stored, changes = store(policy, converted, args)
    symbol, layers = converted.symbol, _NONE
    if kind is not None:
        whole = converted
        graph, merged = merge_windows(whole.graph, whole.facts, kind)
        if merged:
            stored = merge_params(merged, stored)
            whole = whole.with_graph(graph, shapes={each.name: stored[each.name].shape for each in merged})
        fit = find_fit(whole.graph, whole.facts, kind)
        stored, layers = fit_params(fit, stored), fit.layers
        symbol = from_graph(fit.graph, whole.symbol) if layers else whole.symbol
    types = low_dtypes(stored)
    before = low_dtypes(arg_params)
    widened_dtypes = {name: dtype for name, dtype in before.items() if name in stored and name not in types}
    sizes = bytes_before, total_bytes(stored) + total_bytes(aux)
    outside = tuple(sorted(out_of_range))
    return ConvertedModel(symbol, stored, aux, converted.decisions, changes, outside, sizes, widened_dtypes, layers)


def _contexts(*params: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the context of each array; values that are no arrays are refused elsewhere."""
    return (array.ctx for arrays in params for array in arrays.values() if hasattr(array, "ctx"))


def convert_checkpoint(
    prefix: str,
    epoch: int,
    out_prefix: str,
    policy: PolicyLike = "O2",
    shapes: Optional[Any] = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    out_epoch: Optional[int] = None,
    ranges: Optional[Mapping[str, float]] = None,
    on_stage: Callable[[str], None] = lambda stage: None,
    for_inference: bool = False,
    **changes: Unpack[PolicyChanges],
) -> ConvertedModel:
    """Convert the checkpoint ``prefix-symbol.json``, ``prefix-0000.params`` and write the result.

    The result loads in plain MXNet, without mxmp. Files of ``out_prefix`` that exist are replaced.

    Args:
        prefix: The checkpoint's prefix, folder included.
        epoch: Its epoch.
        out_prefix: Prefix of the files to write; not the same.
        policy: A policy or its text; 'O2' stores parameters in float16.
        shapes: Shapes of inputs, as for ``convert_symbol``.
        dtypes: Dtypes of inputs, as for ``convert_symbol``.
        out_epoch: Epoch of the file to write; that of the checkpoint unless given.
        ranges: Largest magnitudes of outputs by name, as for ``convert_symbol``.
        on_stage: Called with 'load', 'convert' and 'write' as each begins, to show progress.
        for_inference: Whether the model will only infer, as for ``convert_model``.
        **changes: Fields of the policy that overrule it.

    Returns:
        The converted model, with its report.

    Raises:
        CheckpointError: If a file is missing, damaged or cannot be written. Then nothing is written.
        ConvertError: If the parameters do not fit the symbol, or it cannot be converted.
        PolicyError: If the policy does not parse, or one of its patterns matches nothing.
    """
    check_out_prefix(prefix, out_prefix)
    policy = parse_policy(policy, **changes)  # by the machine, not by where the arrays of a file lie
    on_stage("load")
    source = load_checkpoint(prefix, epoch)
    on_stage("convert")
    with naming_files(*checkpoint_files(prefix, epoch)):
        model = convert_model(*source, policy, shapes, dtypes, ranges, for_inference)
    on_stage("write")
    save_checkpoint(out_prefix, epoch if out_epoch is None else out_epoch, *model)
    return model
