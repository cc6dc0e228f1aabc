"""The arguments and options that commands share, the inputs that they name, and the ways to print a result."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections import Counter
from functools import partial
from glob import escape, glob
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar

import click

from .. import dtypes
from ..checkpoint import checkpoint_files, describe_epochs, params_file_of, require_checkpoint, saved_epochs
from ..errors import CheckpointError, DtypeError, PolicyError, SlowPrecisionWarning
from ..files import require_folder
from ..policy import Policy, is_auto

DEFAULT_POLICY = "O2"
"""The policy of a checkpoint unless another is given; weights are stored in float16."""

RANDOM = "random numbers from 0 to 1"
"""The inputs of a network that is run without ``--data``."""

_FILE_OF_PREFIX = re.compile(r"(.+)(-symbol\.json|-\d{4,}\.params)")
_NUMBERS = "biuf"  # The kinds of numpy's dtypes that MXNet has.

Command = TypeVar("Command", bound=Callable[..., Any])
Pairs = List[Tuple[str, str]]


# ---------------------------------------------------------------------- arguments and options


class WholeNumber(click.IntRange):
    """A whole number within bounds. Click's own message calls it an 'integer range'."""

    name = "whole number"


class Number(click.FloatRange):
    """A number within bounds. Click's own message calls it a 'float range'."""

    name = "number"


def check_prefix(ctx: click.Context, param: click.Parameter, text: str, read: bool = False) -> str:
    """Return the prefix of a checkpoint's files, folder included. With ``read`` the files have to exist."""
    # Shells complete the names of files, and a checkpoint's files begin with its prefix.
    match = _FILE_OF_PREFIX.fullmatch(text)
    if match:
        raise click.BadParameter(f"{text!r} is a file; give its prefix, {match.group(1)!r}.", ctx, param)
    if read and os.path.isdir(text) and not os.path.exists(f"{text}-symbol.json"):
        found = sorted(glob(f"{escape(os.path.join(text, ''))}*-symbol.json"))
        names = ", ".join(repr(file[: -len("-symbol.json")]) for file in found[:5]) or "none"
        raise click.BadParameter(f"{text!r} is a folder; the prefixes in it: {names}.", ctx, param)
    if not text or text.endswith("/"):
        raise click.BadParameter(f"{text!r} is a folder; put a name behind it, such as '{text}net'.", ctx, param)
    return text


def _read_shape(text: str) -> Tuple[str, Any]:
    """Return (name, sizes) of a text such as 'data:1,3,224,224'."""
    # From the right: MXNet takes names with colons.
    name, _, sizes = text.rpartition(":")
    if not name or not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*,?\s*", sizes):
        raise click.BadParameter(f"{text!r} is no shape; expected one like 'data:1,3,224,224'.")
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    if 0 in shape:
        raise click.BadParameter(f"{text!r} has a size of 0; every size is 1 or more.")
    return name, shape


def _read_dtype(text: str) -> Tuple[str, Any]:
    """Return (name, dtype) of a text such as 'data:int32'."""
    name, _, dtype = text.rpartition(":")
    if not name:
        raise click.BadParameter(f"{text!r} names no input; expected one like 'data:int32'.")
    try:
        return name, dtypes.canonical(dtype)
    except DtypeError:
        raise click.BadParameter(f"{text!r} has no dtype of MXNet; expected one like 'data:int32'.") from None


def _once_each(ctx: click.Context, param: click.Parameter, pairs: Sequence[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return pairs as a dict, for options that may be repeated."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{name!r} is given twice.", ctx, param)
    return dict(pairs)


def _decorator(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


checkpoint_arguments = _decorator(
    click.argument("prefix", callback=partial(check_prefix, read=True)),
    click.argument("epoch", type=WholeNumber(min=0), required=False),
)
"""PREFIX [EPOCH]: the files of a checkpoint."""

input_options = _decorator(
    click.option(
        "--data",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE.npz",
        help="The inputs: arrays by name, as numpy.savez writes them. Their shapes need no --shape.",
    ),
    click.option(
        "--shape",
        "shapes",
        type=_read_shape,
        metavar="NAME:SIZES",
        multiple=True,
        callback=_once_each,
        help="The shape of an input, such as data:1,3,224,224. Repeatable.",
    ),
    click.option(
        "--dtype",
        "types",
        type=_read_dtype,
        metavar="NAME:DTYPE",
        multiple=True,
        callback=_once_each,
        help="The dtype of an input that is not float32, such as data:int32. Repeatable.",
    ),
)
"""--data, --shape and --dtype: the inputs of a network."""

conversion_options = _decorator(
    click.option(
        "--keep-float32",
        metavar="PATTERN",
        multiple=True,
        help="Keep the operators of these names in float32; *, ? and [...] as in a shell. Repeatable.",
    ),
    click.option("--output-dtype", metavar="DTYPE", help="The dtype of the outputs, in place of the policy's."),
    click.option(
        "--out-of-range",
        metavar="clamp|float32",
        help="How parameters beyond the dtype's range are stored: clamped to it, or in float32 with their readers.",
    ),
)
"""--keep-float32 and its like: changes of a policy."""


def out_options(help: str, required: bool = False) -> Callable[[Command], Command]:
    """Return a decorator that adds ``-o``, a file to write, and ``--force``."""
    return _decorator(
        click.option("-o", "--out", type=click.Path(), metavar="FILE", required=required, help=help),
        click.option("--force", is_flag=True, help="Overwrite a file that exists."),
    )


result_options = _decorator(
    out_options("Write the result as JSON, which `mxmp report` shows."),
    click.option("--json", "as_json", is_flag=True, help="Print the same JSON instead of tables."),
)
"""-o, --force and --json: where the result goes."""


def make_policy(
    text: str,
    keep_float32: Sequence[str] = (),
    output_dtype: Optional[str] = None,
    out_of_range: Optional[str] = None,
) -> Policy:
    """Return the policy that the options describe."""
    # An option that is not given leaves the field to the policy's text.
    changes = {"output_dtype": output_dtype, "out_of_range": out_of_range}
    parse: Callable[..., Policy] = Policy.parse
    if is_auto(text):
        from ..devices.auto import parse_policy

        parse = parse_policy
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SlowPrecisionWarning)  # the report has it as a note
            policy = parse(text, **{field: value for field, value in changes.items() if value is not None})
        names = {**dict(policy.names), **dict.fromkeys(keep_float32, dtypes.FLOAT32)}
        return policy.replace(names=names)
    except PolicyError as e:
        raise click.UsageError(str(e), click.get_current_context()) from e


# ---------------------------------------------------------------------- files and inputs


def require_new(*paths: str, force: bool) -> None:
    """Check before any work that the files of ``-o`` can be written.

    Raises:
        CheckpointError: If a folder is missing, or a file exists and ``force`` is false. It names the first such file.
    """
    for path in paths:
        require_folder(path)
        if os.path.isdir(path):
            raise CheckpointError(f"{path}: it is a folder; give another name to -o.")
        # A link that leads nowhere is in the way too, which `exists` does not see.
        if os.path.lexists(path) and not force:
            raise CheckpointError(f"{path}: it exists; give another name to -o, or --force to overwrite it.")


def read_epoch(prefix: str, epoch: Optional[int]) -> int:
    """Return the epoch of a checkpoint whose files exist: the one that is given, or the only one that there is.

    Raises:
        CheckpointError: If a file is missing, or if no epoch is given and there is not exactly one.
    """
    require_checkpoint(prefix)
    epochs = saved_epochs(prefix) if epoch is None else [epoch]
    if len(epochs) != 1:
        there = describe_epochs(prefix) or "there are none"
        raise CheckpointError(f"{prefix}: give the EPOCH of its parameters; {there}.")
    params_file_of(prefix, epochs[0])
    return epochs[0]


def read_shapes(shapes: Mapping[str, Any], data: Optional[str]) -> Dict[str, Any]:
    """Return the shapes of inputs, those of the arrays of ``--data`` among them."""
    return {**shapes, **{name: array.shape for name, array in _read_arrays(shapes, data).items()}}


def _read_arrays(shapes: Mapping[str, Any], path: Optional[str]) -> Dict[str, Any]:
    """Return the numpy arrays of a .npz file by name, none without a file.

    Raises:
        CheckpointError: If the file cannot be read, or holds anything else than arrays of numbers.
        click.UsageError: If an array has another shape than ``shapes`` say.
    """
    if path is None:
        return {}
    import numpy as np

    try:
        with open(path, "rb") as file:
            loaded = np.load(file, allow_pickle=False)
            arrays = {name: loaded[name] for name in getattr(loaded, "files", ())}
    except OSError as e:
        raise CheckpointError(f"{path}: it cannot be read: {e.strerror or e}.") from e
    except Exception:  # zipfile, zlib and numpy, which evaluates an array's header, raise all sorts
        arrays = {}
    # For a member that is no array numpy gives the bytes.
    if not arrays or not all(getattr(array, "dtype", np.dtype(object)).kind in _NUMBERS for array in arrays.values()):
        raise CheckpointError(
            f"{path}: it is no .npz file with an array of numbers for each input; write one with numpy.savez."
        )
    for name, array in arrays.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise CheckpointError(f"{path}: '{name}' holds NaN, which hides everything else; mend the file.")
        if name in shapes and tuple(shapes[name]) != array.shape:
            sizes = ",".join(map(str, shapes[name]))
            raise click.UsageError(
                f"--shape {name}:{sizes} contradicts --data {path}, in which '{name}' has the shape {array.shape}; "
                f"leave --shape out, or give another batch.",
                click.get_current_context(),
            )
    return arrays


def require_inputs(shapes: Mapping[str, Any], data: Optional[str]) -> None:
    """Check before any work that a network that is to be run has inputs."""
    if not shapes and data is None:
        text = "give --data, or --shape of every input, such as --shape data:8,3,224,224."
        raise click.UsageError(text, click.get_current_context())


def load_network(prefix: str, epoch: int, shapes: Any, types: Any, data: Optional[str]) -> Any:
    """Return a checkpoint, a batch for it, and a function of a context in which errors name the checkpoint's files.

    The inputs that ``data`` lacks are random numbers from 0 to 1, or integers 0 or 1. Labels that are given a shape are
    0; others are left out.

    Raises:
        TuneError: If an input has no shape, or if there is no input of a name that is given.
    """
    from ..symbol.arguments import check_params
    from ..symbol.checkpoint import load_checkpoint, naming_files
    from ..tune.speed import make_batch

    arrays = _read_arrays(shapes, data)
    model, naming = load_checkpoint(prefix, epoch), partial(naming_files, *checkpoint_files(prefix, epoch))
    with naming():  # before a missing parameter is taken for an input
        check_params(model.symbol, model.arg_params, model.aux_params, shapes)
    return model, make_batch(model, shapes, types, arrays), naming


# ---------------------------------------------------------------------- results


def console() -> Any:
    """Return rich's console for results, as wide as the terminal.

    A pipe or file has no width, so that a name in it is in one piece and can be searched for. Characters that the
    encoding lacks are escaped, as Python does on stderr.
    """
    from rich.console import Console

    # A stream that a test or a notebook has put there may lack it.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console(width=None if sys.stdout.isatty() else 10_000, highlight=False, markup=False, emoji=False)


def print_pairs(pairs: Sequence[Tuple[str, str]]) -> None:
    """Print names, each with a text."""
    from ..display import terminal

    to = console()
    with to.capture() as captured:
        to.print(terminal.pairs(pairs))
    # Without the spaces up to the width of the longest text.
    print("\n".join(map(str.rstrip, captured.get().splitlines())))


def give(result: Any, out: Optional[str], as_json: bool, show: Callable[[], None], **more: Any) -> None:
    """Write a record to the file of ``-o``, and print it: as JSON, or by ``show``.

    ``more`` are values that the JSON has besides the record's.
    """
    from ..display import save_text

    text = json.dumps({**result.to_dict(), **more}, indent=2, allow_nan=False)
    if out is not None:
        save_text(f"{text}\n", out)
    if as_json:  # for programs: nothing else may be printed
        click.echo(text)
        return
    show()
    if out is not None:
        print_pairs([("written", out)])


def value_pairs(changes: Sequence[Any], out_of_range: Sequence[str], widened: Mapping[str, str], dtype: str) -> Pairs:
    """Return a line for each parameter whose values do not fit into low precision, or were rounded before."""
    pairs = [
        ("clamped", f"{each.name}: {_values(each.clamped)} beyond {dtype}'s range, the largest {each.largest:g}")
        for each in changes
        if each.clamped
    ]
    pairs += [("became zero", f"{each.name}: {_values(each.underflowed)}") for each in changes if each.underflowed]
    pairs += [("kept in float32", f"{name}: values beyond {dtype}'s range") for name in out_of_range]
    rounded = "parameters were stored in {0}: their values were rounded to it, and stay so"
    return pairs + [("note", f"{count} {rounded.format(low)}") for low, count in Counter(widened.values()).items()]


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count:,} values"
