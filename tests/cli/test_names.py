"""Names and paths of any characters on the command line."""

import json
import os
import subprocess
import sys

import mxnet as mx

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
    assert f"{name}_weight" in err or not name.isprintable()


def test_a_pipe_without_the_characters_gets_escapes(tmp_path):
    prefix = saved(tmp_path, "café层")
    command = [sys.executable, "-m", "mxmp", "convert", prefix, "0", "-o", f"{prefix}-low"]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True)
    assert b"caf\\xe9\\u5c42_weight: 12 values" in done.stdout
