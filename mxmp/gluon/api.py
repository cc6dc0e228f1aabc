"""The functions that users call on a Gluon net: convert, cast, restore, report, export, adopt_weights."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence, Tuple, Union

from mxnet import gluon

from .. import dtypes
from ..arrays import to_float32
from ..devices.auto import parse_policy
from ..devices.check import amx_notes, not_for_this_machine
from ..errors import ConvertError, TrainerError, a_type_of
from ..passes import EraseCasts
from ..policy import Policy, PolicyChanges, check_blocks
from ..report import Report, merge
from ..symbol import convert_graph, from_graph, save_checkpoint, to_graph
from ..symbol.arguments import checked_ranges
from ..train.masters import require_masters, sync_masters_from_weights
from . import storage
from .adoption import forget_policy, note_policy
from .blocks import (
    block_names,
    blocks_in,
    children,
    conversion_of,
    conversions_of,
    descendants,
    frozen_model,
    is_part,
    net_around,
    roots,
)
from .conversion import Conversion
from .freeze import model_for_inference
from .regions import BlockRegions, find_regions, require_dtype
from .siblings import Siblings

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOG = logging.getLogger(__name__)

_FLOAT32 = "_mxmp_float32"
"""The attribute in which a net with a float32 policy has it; such a net runs as it was written."""


def convert(
    net: gluon.Block,
    policy: Union[str, Policy],
    ranges: Optional[Mapping[str, float]] = None,
    **changes: Unpack[PolicyChanges],
) -> gluon.Block:
    """Convert a net in place, so that it trains and infers in mixed precision.

    The net keeps its API, its parameters with their names, and its state of hybridization. From now on it always runs
    as a graph, hybridized or not. ``convert`` works before and after ``initialize``.

    ``convert`` checks the policy and notes it. The first call converts the net's graph, with the shapes of the batch,
    and stores parameters. A SymbolBlock has its graph and is converted at once. A copy of a converted net has float32
    parameters and is converted at its own first call, and so is a net from a pickle.

    Blocks in the net that were converted before are converted anew, with this policy. A net that has this policy
    already stays as it is, unless it has got new blocks. On CPU contexts float16 is emulated: the arithmetic is
    float32, and each result is rounded to float16.

    A block within a converted net gets a conversion for its own calls. The calls of the net keep the net's policy. If
    that is another one, a warning is logged.

    The first call (``convert`` itself of a SymbolBlock) raises an error if the policy does not suit the graph. Then net
    and parameters are as they were. It is a PolicyError if a pattern of operators or names matches nothing. It is a
    ConvertError if the net cannot be traced or does not type-check by itself; the text names the block or node. It is a
    ConvertError too if ``ranges`` names no output of the net, or names an output beyond the range that the net lacks.

    Args:
        net: A HybridBlock, a SymbolBlock, or a Block with HybridBlocks in it. Each of those gets a graph of its own,
            and the values between them are float32. A SymbolBlock that was imported from the files of ``export`` is the
            net that was exported: the casts of its earlier policy are taken out.
        policy: A policy or its name, such as 'O1', 'O2' or 'mixed_bfloat16'. 'float32' is for inference too. 'auto' is
            the fastest policy for the device of the parameters, a GPU or a kind of processor; ``report`` names it and
            the reason. Before ``initialize`` it is the fastest for a GPU of this machine, if there is one.
        ranges: Largest magnitudes of outputs by name, as ``mxmp.diagnose.measure_ranges(net, loader)`` returns them.
            Operators stay in float32 if they read or give a tensor beyond half of the range of the policy's dtype.
        **changes: Fields of the policy that overrule it, such as ``last_layer_fp32=True``.

    Returns:
        The same net.

    Raises:
        PolicyError: If the policy is invalid, or a pattern of blocks matches none. Also if ``set_policy`` gave a block
            another dtype than the policy has.
        ConvertError: If a block in the net is frozen in low precision, or ``net.cast`` has put the parameters in low
            precision. Also if the policy uses bfloat16 and parameters are on a GPU, because MXNet has no bfloat16
            kernels there. A call with inputs on a GPU raises the same error.
    """
    root_blocks, known_ranges = roots(net), checked_ranges(ranges)
    contexts = [context for root in root_blocks for context in storage.contexts_of(root.collect_params().values())]
    policy = parse_policy(policy, contexts, **changes)
    for root in root_blocks:
        storage.refuse_cast(root)
        _refuse_frozen(root)
        if is_part(root):
            _warn_of_net_around(root, policy)
    require_dtype(net, policy)
    regions = find_regions(net, policy)
    if all(_is_current(conversion_of(root), policy, regions, known_ranges) for root in root_blocks):
        return net
    replaced = conversions_of(blocks_in(*root_blocks))
    require_masters(param for conversion in replaced for param in conversion.stored)
    names = block_names(net)
    siblings = Siblings(policy, names, known_ranges)  # they may share parameters
    conversions = [Conversion(root, policy, regions, known_ranges, siblings) for root in root_blocks]
    check_blocks(policy, names)
    for conversion in conversions:
        if conversion.own_graph is not None:
            conversion.convert_symbol()
    in_float32 = {root: vars(root).get(_FLOAT32) for root in root_blocks}
    try:
        for conversion in replaced:
            conversion.remove()
        for conversion in conversions:
            vars(conversion.net).pop(_FLOAT32, None)
            if policy.is_mixed or conversion.changes_float32:
                conversion.install()
            else:
                vars(conversion.net)[_FLOAT32] = policy
        note_policy(net.collect_params().values(), policy)  # also those of a plain Block itself
    except BaseException:
        for conversion in conversions_of(blocks_in(*root_blocks)):
            conversion.remove()
        for conversion in replaced:
            conversion.install()
        forget_policy(net.collect_params().values(), policy)
        for root, policy_before in in_float32.items():
            vars(root).pop(_FLOAT32, None)
            if policy_before is not None:
                vars(root)[_FLOAT32] = policy_before
        raise
    return net


def _refuse_frozen(net: gluon.Block) -> None:
    """Raise a ConvertError if a net, or a block in it, is frozen in low precision."""
    for block in blocks_in(net):
        params = block.collect_params().values() if frozen_model(block) else ()
        low_param = next((param for param in params if storage.dtype_of(param) in dtypes.LOW_PRECISION), None)
        if low_param is not None:
            raise ConvertError(
                f"block '{block.name}' is frozen with weights in {storage.dtype_of(low_param)}, a snapshot: freeze the "
                f"net that it was made of under the policy that you want, or freeze it in float32."
            )


def _warn_of_net_around(block: gluon.Block, policy: Policy) -> None:
    """Log a warning if a part is within a net of another policy, whose calls go on without the part's."""
    net = net_around(block)
    if net is not None and conversion_of(net).policy != policy:
        text = (
            "block '%s' is part of net '%s', which is converted to another policy (%s): only calls of the block by "
            "itself have the new one. For a precision of its own within the net call mxmp.gluon.set_policy(block, "
            "'float32'), and convert the net again."
        )
        _LOG.warning(text, block.name, net.name, conversion_of(net).policy)


def convert_all(nets: Sequence[gluon.Block], policy: Union[str, Policy]) -> None:
    """Convert several nets, or leave all of them as they were; raises the errors of `convert`."""
    inner_blocks = blocks_in(*(net for net in nets if isinstance(net, gluon.Block)))
    policies_before = [(each.net, each.policy, each.ranges) for each in conversions_of(inner_blocks)]
    policies_before += [(block, vars(block)[_FLOAT32], {}) for block in inner_blocks if _FLOAT32 in vars(block)]
    converted_nets: List[gluon.Block] = []
    try:
        for net in nets:
            convert(net, policy)
            converted_nets.append(net)
    except BaseException:
        for net in converted_nets:
            restore(net)
        for block, *old in policies_before:
            convert(block, *old)
        raise


def cast(net: gluon.Block, dtype: str) -> gluon.Block:
    """Store and run a net in low precision, with BatchNorm, softmax and their like in float32.

    Parameters that low precision operators read are stored in ``dtype``; all others stay float32. Inputs are cast where
    that is needed; integer inputs and labels never are. Outputs are float32. MXNet's ``net.cast(dtype)`` casts
    everything.

    Args:
        net: The net.
        dtype: 'float16', 'bfloat16', or 'float32' to undo it.

    Returns:
        The same net.

    Raises:
        DtypeError: If the dtype is unknown.
        ConvertError: If the net cannot be converted, see ``convert``.
    """
    name = dtypes.canonical(dtype)
    if name == dtypes.FLOAT32:
        return restore(net)
    return convert(net, Policy(param_dtype=name, compute_dtype=name))


def restore(net: gluon.Block) -> gluon.Block:
    """Undo ``convert``: the net runs its own float32 graph again.

    Parameters that were stored in low precision become float32, with their exact values. A parameter that was not
    trained when it was converted (``grad_req='null'``) has no exact value: it becomes its rounded one. The float32
    graph of an imported SymbolBlock lacks the casts that mxmp had inserted before the export.

    Raises:
        ConvertError: If ``net`` is no block, a block within a converted net, or frozen.
        TrainerError: If a weight was written to without its float32 master. Then nothing is changed.
    """
    if isinstance(net, gluon.Block) and frozen_model(net):
        raise ConvertError(
            f"restore: block '{net.name}' is frozen, a snapshot that cannot be restored. The net that it was made of "
            f"is unchanged: use that, or restore that if it is converted."
        )
    return remove_conversions(net)


def remove_conversions(net: gluon.Block) -> gluon.Block:
    """Undo ``convert`` as `restore` does; a frozen block, which may be converted no more, stays as it is."""
    inner_blocks = _require_whole(net, "restore")
    conversions = conversions_of(inner_blocks)
    require_masters(param for conversion in conversions for param in conversion.stored)
    for conversion in conversions:
        conversion.remove()
    policies = [conversion.policy for conversion in conversions]
    policies += [vars(block).pop(_FLOAT32) for block in inner_blocks if _FLOAT32 in vars(block)]
    for policy in policies:
        forget_policy(net.collect_params().values(), policy)
    return net


def report(net: gluon.Block) -> Report:
    """Return the precision of each operator of a converted net, and why; of a net converted to 'O0' that of float32.

    The report is of the net's last call. A SymbolBlock that was not called was converted without shapes. Its operators
    that depend on shapes may run in another precision later. A note of the report names the blocks that no conversion
    reaches, with their own parameters.

    Raises:
        ConvertError: If ``net`` is no block, is not converted, is within a converted net, or was not called yet.
    """
    reports: List[Report] = []
    inner_blocks = _require_whole(net, "report")
    parts = {part for conversion in conversions_of(inner_blocks) for part in descendants(conversion.net)}
    for block in inner_blocks:
        if block in parts and conversion_of(block) is not None:
            continue  # the report of the net around it has its operators
        each = _report(block)
        if each is not None:
            reports.append(each)
    if not reports:
        raise ConvertError(f"block '{net.name}' ({type(net).__name__}) is not converted; call convert first.")
    merged = merge(reports)
    unreached = _unreached(net) if conversion_of(net) is None and conversions_of(blocks_in(net)) else ()
    return replace(merged, notes=(*reports[0].notes, *amx_notes(merged.count), *unreached))


def export(net: gluon.HybridBlock, path: str, epoch: int = 0, for_inference: bool = False) -> Tuple[str, str]:
    """Write a converted or frozen net as a model that plain MXNet loads, as ``net.export`` does.

    The log warns if plain MXNet does not run that model on this machine, as float16 without a GPU.

    Args:
        net: The net; it is not changed.
        path: Prefix of the files.
        epoch: Number in the name of the file of parameters.
        for_inference: Whether the written model will only infer. Then it is the model of `freeze` under the net's own
            policy: BatchNorm is folded in float32, dropout is left out, and weights are stored in the dtype in which
            they are read. No backend has partitioned it, so it loads everywhere. A hybridized net that is not converted
            is written too, in float32. An ``export`` that the net's class defines is not called. A frozen block is
            written unchanged.

    Returns:
        The paths of the written files, ``<path>-symbol.json`` and ``<path>-<epoch>.params``.

    Raises:
        ConvertError: If the net is not converted, or was not called yet. With ``for_inference`` a hybridized net need
            not be converted. Also if a parameter has no value.
        CheckpointError: If the folder is missing or cannot be written to.
    """
    if not isinstance(net, gluon.Block) or not isinstance(path, (str, os.PathLike)):
        kinds = f"net is {a_type_of(net)}, path {a_type_of(path)}"
        raise ConvertError(f"export: {kinds}; expected a Gluon block and the prefix of the files.")
    path, conversion = os.fspath(path), conversion_of(net)
    require_masters(net.collect_params().values())
    inner_conversions = conversions_of(descendants(net))
    if frozen_model(net) or (for_inference and (conversion is not None or not inner_conversions)):
        save_checkpoint(path, epoch, *model_for_inference(net))
    elif conversion is not None:
        net.export(path, epoch)
    elif inner_conversions:
        names = ", ".join(each.net.name for each in inner_conversions)
        raise ConvertError(
            f"block '{net.name}' ({type(net).__name__}) has no graph of its own; export the converted blocks in "
            f"it: {names}."
        )
    else:
        raise ConvertError(f"block '{net.name}' is not converted; use net.export.")
    written = _report(net)
    unfit = written and not_for_this_machine(written.policy, written)
    if unfit:
        _LOG.warning("%s-symbol.json is for plain MXNet, but %s", path, unfit)
    return f"{path}-symbol.json", f"{path}-{epoch:04d}.params"


def as_symbol_block(net: gluon.HybridBlock, ctx: Any) -> gluon.SymbolBlock:
    """Return the float32 graph of a net as a SymbolBlock, with copies of the parameters that the graph reads.

    Args:
        net: A SymbolBlock, or a net that is hybridized and was called once; converted or not. It is not changed.
        ctx: The context or contexts of the copies; None for those of the net.

    Raises:
        ConvertError: If ``net`` is no net, or has no graph yet.
    """
    if not isinstance(net, gluon.HybridBlock):
        raise ConvertError(f"block is {a_type_of(net)}; expected a HybridBlock.")
    if not net._cached_graph:
        raise ConvertError(f"block '{net.name}' has no graph yet; hybridize it and run one batch, then convert it.")
    inputs, symbol = net._cached_graph
    symbol = frozen_model(net).symbol if frozen_model(net) else symbol  # the block's graph has guards and emulation
    result = gluon.SymbolBlock(from_graph(EraseCasts()(to_graph(symbol)).graph, symbol), inputs)
    originals = net.collect_params()
    for name, param in result.collect_params().items():
        original = originals[name]
        param.grad_req, param.lr_mult, param.wd_mult = original.grad_req, original.lr_mult, original.wd_mult
        contexts = original.list_ctx() if ctx is None else ctx
        param._load_init(to_float32(original._reduce()), contexts)
    return result


def _is_current(conversion: Optional[Conversion], policy: Policy, regions: BlockRegions, ranges: Any) -> bool:
    """Return whether a net's conversion is equal to the one that ``convert`` would install."""
    if type(conversion) is not Conversion or not all(map(is_part, descendants(conversion.net))):
        return False  # the net has a new block
    marks = {block: regions[block] for block in blocks_in(conversion.net) if block in regions}
    same_policy = conversion.policy == policy and conversion.policy.chosen == policy.chosen
    return same_policy and (conversion.regions, conversion.ranges) == (marks, ranges)


def is_fixed(net: gluon.Block) -> bool:
    """Return whether the user chose the precision of an unconverted net: it is frozen, or 'float32' by policy."""
    return frozen_model(net) is not None or _FLOAT32 in vars(net)


def _require_whole(net: Any, function: str) -> List[gluon.Block]:
    """Return a net and the blocks in it; raise a ConvertError if it is no block, or only part of a converted net."""
    if not isinstance(net, gluon.Block):
        raise ConvertError(f"{function}: expected a Gluon block, found {type(net).__name__}.")
    inner_blocks = blocks_in(net)
    if is_part(net) and not conversions_of(inner_blocks):
        raise ConvertError(
            f"{function}: block '{net.name}' is part of a converted net; give the net. For a precision of its own: "
            f"mxmp.gluon.set_policy(block, 'float32'), and convert the net again."
        )
    return inner_blocks


def _report(net: gluon.Block) -> Optional[Report]:
    """Return the report of a block that is converted, frozen, or has a float32 policy; None for other blocks."""
    conversion, frozen = conversion_of(net), frozen_model(net)
    if conversion is not None:
        if conversion.converted is None:
            raise ConvertError(
                f"block '{net.name}' is converted at its first call; call it with one batch before its report."
            )
        return conversion.converted.report  # type: ignore[no-any-return]
    if frozen is not None:
        return frozen.report  # type: ignore[no-any-return]
    policy = vars(net).get(_FLOAT32)
    if policy is None:
        return None
    graph = net._cached_graph
    if not graph:
        raise ConvertError(
            f"block '{net.name}' is float32, and its inputs are not known; hybridize it and run one batch before its "
            f"report."
        )
    return convert_graph(graph[1], policy).report


def _unreached(net: gluon.Block) -> Tuple[str, ...]:
    """Return a note on the blocks of a net that no conversion reaches, or no note if there are no such blocks.

    Containers and other blocks of MXNet without parameters compute nothing by themselves.
    """
    texts, waiting = [], [net]
    for block in waiting:  # it grows meanwhile
        if conversion_of(block) is not None or is_fixed(block):
            continue
        names = list(block.params)
        if names or not type(block).__module__.startswith("mxnet."):
            text = f"'{block.name}' ({type(block).__name__}"
            texts.append(f"{text}, with {', '.join(names)})" if names else f"{text})")
        waiting += [child for child in children(block) if child not in waiting]
    note = (
        "No conversion reaches these blocks, whose operators run in float32: {}. To convert them too, write plain "
        "Blocks as HybridBlocks, and convert the whole net."
    )
    return (note.format(", ".join(texts)),) if texts else ()


def adopt_weights(net: gluon.Block) -> None:
    """Take over the weights of a net as they are, after they were written to without their float32 masters.

    Call it after a write in place (``param.data()[:] = x``, a broadcast of Horovod). ``set_data`` and loads need no
    such call. Where an element of a weight is not its master rounded, the master becomes that element. The other
    elements of the master keep their digits.

    Args:
        net: A net, converted or not. Parameters without a master stay as they are.

    Raises:
        TrainerError: If ``net`` is no net.
    """
    if not isinstance(net, gluon.Block):
        raise TrainerError(f"adopt_weights: expected a Gluon net, found {a_type_of(net)}.")
    for param in net.collect_params().values():
        sync_masters_from_weights(param)  # nothing if it is not initialized
