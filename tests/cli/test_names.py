"""Names and paths of any characters on the command line."""

import io
import json
import sys

import mxnet as mx

from mxmp.cli import commands
from mxmp.errors import visible
from tests.cli.checkpoints import mxmp, table
from tests.names import EACH


def saved(folder, name):
    layer = mx.sym.FullyConnected(mx.sym.var(f"data{name}"), num_hidden=4, name=name)
    args = {f"{name}_weight": mx.nd.ones((4, 3)) * 1e9, f"{name}_bias": mx.nd.ones(4)}
    mx.model.save_checkpoint(str(folder / name), 0, mx.sym.softmax(layer, name="soft"), args, {})
    return str(folder / name)


@EACH
def test_convert_inspect_and_errors_take_any_name(name, tmp_path):
    prefix = saved(tmp_path, name)
    args = "convert", prefix, 0, "-o", f"{prefix}-low", "--shape", f"data{name}:2,3"
    assert any(row[0] == "clamped" and "_weight: 12 values" in row[1] for row in table(mxmp(*args)[0]))
    assert mx.model.load_checkpoint(f"{prefix}-low", 0)[1][f"{name}_weight"].dtype.__name__ == "float16"
    assert json.loads(mxmp("inspect", f"{prefix}-low", "--json")[0])["rows"][0]["name"] == name
    out, _ = mxmp("inspect", prefix)
    assert out.replace("\n", "").isprintable() and sum("FullyConnected" in line for line in out.splitlines()) == 1
    mx.nd.save(f"{prefix}-0000.params", {f"arg:{name}_weight": mx.nd.ones((5, 3)), f"arg:{name}_bias": mx.nd.ones(4)})
    out, err = mxmp(*args, "--force", code=1)
    assert out == "" and err.endswith("\n") and err[:-1].isprintable()
    assert f"{visible(name)}_weight" in err or "\n" in name


def test_a_terminal_without_the_characters_gets_escapes(tmp_path, monkeypatch):
    prefix = saved(tmp_path, "café层")
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")  # as Python makes it of a pipe
    monkeypatch.setattr(sys, "stdout", stdout)
    commands(["convert", prefix, "0", "-o", f"{prefix}-low"], standalone_mode=False)
    stdout.flush()
    assert b"caf\\xe9\\u5c42_weight: 12 values" in stdout.buffer.getvalue()
