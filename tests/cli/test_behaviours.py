"""What a user can check of the command line, by public names only. docs/behaviours.md lists it."""

import subprocess
import sys

import mxnet as mx
import pytest

import mxmp
from tests.symbol.small import dense, params_of


def mxmp_command(*args, cwd):
    return subprocess.run([sys.executable, "-m", "mxmp", *args], cwd=cwd, capture_output=True, text=True)


@pytest.mark.behaviour(59)
@pytest.mark.parametrize(("policy", "folds"), [("O2", False), ("mixed_bfloat16", True)])
def test_the_command_line_converts_a_checkpoint_as_python_does(policy, folds, tmp_path):
    """A network of which the shapes decide: a sum that is short enough for float16."""
    norm = mx.sym.BatchNorm(dense(mx.sym.var("data")), name="norm")
    symbol, shapes = dense(mx.sym.sum(norm, axis=1, keepdims=True, name="total"), "last"), {"data": (4, 5)}
    mx.model.save_checkpoint(str(tmp_path / "net"), 2, symbol, *params_of(symbol, shapes))
    options = ["--policy", policy, "--shape", "data:4,5", *(["--for-inference"] if folds else [])]
    ended = mxmp_command("convert", "net", "2", "-o", "low", *options, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    prefix, out = str(tmp_path / "net"), str(tmp_path / "by_python")
    mxmp.symbol.convert_checkpoint(prefix, 2, out, policy, shapes, for_inference=folds)
    for suffix in ("-symbol.json", "-0002.params"):
        assert (tmp_path / f"low{suffix}").read_bytes() == (tmp_path / f"by_python{suffix}").read_bytes()


@pytest.mark.behaviour(60)
@pytest.mark.parametrize("prefix", ["missing", "missing\nfile"])
def test_an_error_on_the_command_line_is_one_line_and_exit_code_1(prefix, tmp_path):
    ended = mxmp_command("convert", prefix, "1", "-o", "low", cwd=tmp_path)
    assert ended.returncode == 1 and ended.stderr.startswith("mxmp: error: ") and "missing" in ended.stderr
    assert ended.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_an_error_of_several_lines_is_one_line_on_the_command_line(tmp_path, monkeypatch):
    """Of a compiler, for example, whose words are quoted."""
    (tmp_path / "cxx").write_text("#!/bin/sh\necho two >&2\necho lines >&2\nexit 3\n")
    (tmp_path / "cxx").chmod(0o700)
    monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ended = mxmp_command("build", cwd=tmp_path)
    assert ended.returncode == 1 and ended.stderr.endswith("ended with 3: two lines\n") and ended.stderr.count("\n") == 1
