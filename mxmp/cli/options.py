"""Arguments, options and outputs that commands share, as values that the library takes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import warnings
from collections import Counter
from functools import partial
from glob import escape, glob
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar

import click

from .. import dtypes
from ..checkpoint import checkpoint_files
from ..errors import CheckpointError, DtypeError, PolicyError, SlowPrecisionWarning
from ..files import require_folder
from ..policy import Policy, is_auto
from .interrupts import raising

_FILE_OF_PREFIX = re.compile(r"(.+)(-symbol\.json|-\d{4,}\.params)")

Command = TypeVar("Command", bound=Callable[..., Any])
Pairs = List[Tuple[str, str]]


def check_prefix(ctx: click.Context, param: click.Parameter, text: str, read: bool = False) -> str:
    """Return the prefix of a checkpoint's files, folder included; with ``read`` there have to be such files."""
    # Shells complete the names of files, and of a checkpoint's these begin with its prefix.
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


def require_new(*paths: str, force: bool) -> None:
    """Check, before any work, that the files that ``-o`` names can be made: in a folder, and not there, or may go.

    Raises:
        CheckpointError: If not; it names the first that cannot.
    """
    for path in paths:
        require_folder(path)
        if os.path.isdir(path):
            raise CheckpointError(f"{path}: it is a folder; give another name to -o.")
        # A link that leads nowhere is in the way too, which `exists` does not see.
        if os.path.lexists(path) and not force:
            raise CheckpointError(f"{path}: it exists; give another name to -o, or --force to overwrite it.")


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


def model_options(command: Command) -> Command:
    """Add the options that say what is known about a network and how it is to be converted."""
    return _added(command, _MODEL_OPTIONS)


def input_options(command: Command) -> Command:
    """Add the options that say what is known about a network's inputs."""
    return _added(command, _MODEL_OPTIONS[_INPUTS])


def _added(command: Command, options: Sequence[Callable[[Any], Any]]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def out_option(help: str, required: bool = False) -> Callable[[Command], Command]:
    """Return what adds -o, a file to write, and --force."""
    out = click.option("-o", "--out", type=click.Path(), metavar="FILE", required=required, help=help)
    force = click.option("--force", is_flag=True, help="Overwrite a file that exists.")
    return partial(_added, options=[out, force])


def batch_option(help: str = "") -> Callable[[Command], Command]:
    """Return what adds --data, a file with a batch; ``help`` is what is said of it besides."""
    said = "A batch: arrays by names of inputs, as numpy.savez writes them; random numbers from 0 to 1 unless given."
    path = click.Path(exists=True, dir_okay=False)
    return click.option("--data", type=path, metavar="FILE.npz", help=f"{said} {help}".strip())


_INPUTS = slice(1, 3)  # of the options below
_MODEL_OPTIONS: List[Callable[[Any], Any]] = [
    click.option(
        "--keep-float32",
        metavar="PATTERN",
        multiple=True,
        help="Keep the nodes of these names in float32; *, ? and [...] as in a shell. Repeatable.",
    ),
    click.option(
        "--shape",
        "shapes",
        type=_read_shape,
        metavar="NAME:SIZES",
        multiple=True,
        callback=_once_each,
        help="Shape of an input: data:1,3,224,224. With the shapes of all inputs, casts are placed where they move "
        "the fewest bytes. Repeatable.",
    ),
    click.option(
        "--dtype",
        "types",
        type=_read_dtype,
        metavar="NAME:DTYPE",
        multiple=True,
        callback=_once_each,
        help="Dtype of an input that is not float32: data:int32. Repeatable.",
    ),
    click.option("--output-dtype", metavar="DTYPE", help="Dtype of the outputs, in place of the policy's."),
    click.option(
        "--out-of-range",
        metavar="clamp|float32",
        help="What becomes of parameters beyond the dtype's range: clamped, or their readers stay in float32.",
    ),
]


def make_policy(
    text: str,
    keep_float32: Sequence[str],
    output_dtype: Optional[str],
    out_of_range: Optional[str],
    takes_auto: bool = False,
) -> Policy:
    """Return the policy that the options describe; ``takes_auto`` says whether the command takes 'auto'."""
    # What is not given is left to the policy's text, which may have it.
    changes = {"output_dtype": output_dtype, "out_of_range": out_of_range}
    parse: Callable[..., Policy] = Policy.parse
    if takes_auto and is_auto(text):
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


# ---------------------------------------------------------------------- what commands read

RANDOM = "random numbers from 0 to 1"


def load_network(
    prefix: str, epoch: int, shapes: Any, types: Any, data: Optional[str] = None, complete: bool = False
) -> Any:
    """Return a checkpoint, a batch for it, and a function of a context in which errors name its files.

    The batch is that of the file ``data``, else random numbers; ``complete`` fills in what the file lacks.
    """
    from ..diagnose.batches import load_batch
    from ..diagnose.subject import inputs_of
    from ..symbol.arguments import check_params
    from ..symbol.checkpoint import load_checkpoint, naming_files
    from ..tune.speed import make_batch

    model, naming = load_checkpoint(prefix, epoch), partial(naming_files, *checkpoint_files(prefix, epoch))
    with naming():  # before what lacks is taken for an input
        check_params(model.symbol, model.arg_params, model.aux_params, shapes)
    batch = {} if data is None else load_batch(data, types, inputs_of(model.symbol, ()))
    # The file decides; a shape that says the same is let through.
    for name in shapes.keys() & batch.keys():
        if tuple(shapes[name]) != batch[name].shape:
            sizes = ",".join(map(str, shapes[name]))
            raise click.UsageError(
                f"--shape {name}:{sizes} contradicts --data {data}, in which '{name}' has the shape "
                f"{batch[name].shape}; leave --shape out, or give another batch.",
                click.get_current_context(),
            )
    if data is None or complete:
        shapes = {**shapes, **{name: array.shape for name, array in batch.items()}}
        batch = {**make_batch(model, shapes, types), **batch}
    return model, batch, naming


# ---------------------------------------------------------------------- what commands print

NARROW = 80
"""Columns of a terminal, below which names would be broken."""

_UNLIMITED = 10_000  # columns; a pipe has no width, and a name in one piece can be searched for


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Do the work of a command whose imports are over: Ctrl-C raises KeyboardInterrupt, warnings are one line each."""
    logging.basicConfig(format="mxmp: %(levelname)s: %(message)s")
    with raising():
        yield


def stdout(width: int = _UNLIMITED) -> Any:
    """Return rich's console for results, as wide as the terminal or a variable COLUMNS says, else as given.

    What the terminal's encoding lacks is escaped, as Python does on stderr.
    """
    from rich.console import Console

    # A stream that a test or a notebook has put there may lack it.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    columns = os.environ.get("COLUMNS", "")
    known = sys.stdout.isatty() or (columns.isdigit() and width < _UNLIMITED)
    return Console(width=None if known else width, highlight=False, markup=False, emoji=False)


def print_pairs(pairs: Sequence[Tuple[str, str]]) -> None:
    """Print things, each with a text."""
    from ..display import terminal

    stdout().print(terminal.pairs(pairs))


def print_json(values: Any) -> None:
    """Print plain values."""
    click.echo(json.dumps(values, indent=2))


def value_pairs(changes: Sequence[Any], out_of_range: Sequence[str], widened: Mapping[str, str], dtype: str) -> Pairs:
    """Return what to say of parameters: whose values did not fit into low precision, or were rounded before."""
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
