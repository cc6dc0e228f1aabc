"""A small checkpoint, and the command line run on it."""

import inspect

import mxnet as mx
import numpy as np
from click.testing import CliRunner

from mxmp.cli import commands
from tests.symbol.small import params_of

SHAPE = "data:2,3,8,8"
SHAPES = {"data": (2, 3, 8, 8)}
CONV, FC = 4 * 3 * 3 * 3 + 4, 5 * 144 + 5  # values of a layer's weight and bias
BN = 4 * 4
# Keeps stderr apart, as click does by itself from 8.2 on.
RUNNER = CliRunner(**{"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {})


def network():
    conv = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, name="conv")
    act = mx.sym.relu(mx.sym.BatchNorm(conv, fix_gamma=False, name="bn"), name="act")
    fc = mx.sym.FullyConnected(mx.sym.Flatten(act, name="flat"), num_hidden=5, name="fc")
    return mx.sym.SoftmaxOutput(fc, name="softmax")


def params(symbol):
    """Return arguments and auxiliary states, every value within float16's range."""
    return params_of(symbol, {**SHAPES, "softmax_label": (2,)})


def save(folder, name="net", epoch=3, symbol=None, **values):
    """Write a checkpoint by MXNet alone, some parameters replaced, and return its prefix."""
    symbol, prefix = symbol or network(), str(folder / name)
    args, aux = params(symbol)
    args.update({param: mx.nd.array(np.broadcast_to(value, args[param].shape)) for param, value in values.items()})
    mx.model.save_checkpoint(prefix, epoch, symbol, args, aux)
    return prefix


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def run(*args):
    """Run the command line and return (exit code, stdout, stderr); it must not end with an exception."""
    result = RUNNER.invoke(commands, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def mxmp(*args, code=0):
    """Run the command line and return (stdout, stderr); it must end with an exit code."""
    ended, out, err = run(*args)
    assert ended == code, out + err
    return out, err


def said(out):
    """Return the second of two cells or columns by the first."""
    return {row[0]: row[1] for row in table(out) if len(row) == 2}


def table(text):
    """Return the rows of all tables in a text, each a list of cells, and its lines of a name and what is said of it."""
    rows = []
    for line in text.splitlines():
        is_row = line.strip()[:1] in ("│", "┃")
        cells = line.strip().strip("│┃").replace("┃", "│").split("│") if is_row else line.strip().split("  ", 1)
        rows += [[cell.strip() for cell in cells]] if len(cells) > 1 else []
    return rows
