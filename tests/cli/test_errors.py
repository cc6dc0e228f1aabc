"""Bad input: one line that says what to do, and an exit code; never a traceback."""

from __future__ import annotations

import json
import re
import sys

import mxnet as mx
import pytest

import mxmp as package
from tests.cli.checkpoints import SHAPE, mxmp, network, params, save


def refused(match, *args, code=1):
    """Expect that the command line refuses its arguments, and return what it says."""
    out, err = mxmp(*args, code=code)
    assert out == "" and "Traceback" not in err
    if code == 1:
        assert err.startswith("mxmp: error: ") and err.count("\n") == 1
    assert re.search(match, " ".join(err.split())), err
    return err


@pytest.fixture
def prefix(tmp_path):
    return save(tmp_path)


@pytest.mark.parametrize("command", [["convert", "PREFIX", "3", "-o", "OUT"], ["inspect", "PREFIX", "--policy", "O2"]])
@pytest.mark.parametrize(
    "options, code, match",
    [
        (["--policy", "O9"], 2, r"unknown policy 'O9'; the nearest are"),
        (["--policy", "O0", "--output-dtype", "float16"], 2, r"output_dtype='float16' with compute_dtype='float32'"),
        (["--policy", "O1", "--output-dtype", "int7"], 2, r"unknown dtype 'int7'"),
        (["--policy", "O1", "--out-of-range", "wrap"], 2, r"out_of_range='wrap': expected 'clamp' or 'float32'"),
        (["--keep-float32", "a=b"], 2, r"'a=b' is no pattern"),
        (["--keep-float32", "fx*"], 1, r"names: 'fx\*' matches no node; the nearest are softmax, fc"),
        (["--shape", "data"], 2, r"'data' is no shape; expected one like 'data:1,3,224,224'"),
        (["--shape", "data:"], 2, r"'data:' is no shape"),
        (["--shape", "data:2x3"], 2, r"'data:2x3' is no shape"),
        (["--shape", "data:2,-3"], 2, r"'data:2,-3' is no shape"),
        (["--shape", "data:0,3,8,8"], 2, r"'data:0,3,8,8' has a size of 0; every size is 1 or more"),
        (["--shape", SHAPE, "--shape", "data:1,3,8,8"], 2, r"'data' is given twice"),
        (["--shape", "dota:2,3,8,8"], 1, r"shapes: the symbol has no variable 'dota'; the nearest are data"),
        (["--shape", "data:2,3"], 1, r"node 'conv': MXNet cannot infer its shapes"),
        (["--dtype", "data:int7"], 2, r"'data:int7' has no dtype of MXNet; expected one like 'data:int32'"),
        (["--dtype", "int32"], 2, r"'int32' names no input"),
        (["--dtype", "dota:int32"], 1, r"dtypes: the symbol has no variable 'dota'"),
        (["--shap", SHAPE], 2, r"No such option:? '?--shap"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options(command, options, code, match, prefix, tmp_path):
    names = {"PREFIX": prefix, "OUT": str(tmp_path / "out")}
    refused(match, *(names.get(arg, arg) for arg in command), *options, code=code)
    assert not list(tmp_path.glob("out*"))


def test_missing_files(prefix, tmp_path):
    refused(r"other-symbol.json: there is no such file", "inspect", tmp_path / "other")
    refused(r"other-symbol.json: there is no such file", "convert", tmp_path / "other", 3, "-o", tmp_path / "out")


@pytest.mark.parametrize("part", [0.0, 0.001, 0.1, 0.5, 0.999])
@pytest.mark.parametrize(
    "end, match", [("symbol.json", "not a symbol's JSON"), ("0003.params", ".* The file is truncated")]
)
def test_truncated_files(end, match, part, prefix, tmp_path):
    file = tmp_path / f"net-{end}"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * part)])
    refused(f"net-{end}: {match}", "convert", prefix, 3, "-o", tmp_path / "out")
    refused(f"net-{end}: {match}", "inspect", prefix)


def test_an_error_of_mxnet_is_one_line(prefix, tmp_path, monkeypatch):
    def fail(*args):
        raise mx.MXNetError("Traceback (most recent call last):\n  File kernel.cc\nMXNetError: no memory")

    monkeypatch.setattr(sys.modules["mxmp.symbol.convert"], "convert_model", fail)
    refused("mxmp: error: MXNet: no memory", "convert", prefix, 3, "-o", tmp_path / "out")


@pytest.mark.parametrize(
    "options", [["inspect", "PREFIX"], ["convert", "PREFIX", "3", "-o", "OUT"]], ids=lambda o: o[0]
)
class TestParametersOfAnotherNetwork:
    def refused(self, match, tmp_path, *options):
        names = {"PREFIX": tmp_path / "net", "OUT": tmp_path / "out"}
        refused(f"{tmp_path}/net-0003.params: {match}", *(names.get(option, option) for option in options))
        assert not list(tmp_path.glob("out*"))

    def test_names(self, options, prefix, tmp_path):
        head = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="head")
        mx.model.save_checkpoint(prefix, 3, head, {"head_weight": mx.nd.ones((3, 2)), "head_bias": mx.nd.ones(3)}, {})
        save(tmp_path, epoch=4)  # writes the symbol of before
        self.refused(
            "aux_params lacks 'bn_moving_mean', 'bn_moving_var', which the symbol has; "
            "those given, 'head_(weight|bias)', 'head_(weight|bias)', seem to be another network's",
            tmp_path,
            *options,
            *(["--epoch", "3"] if options[0] == "inspect" else []),
        )

    @pytest.mark.parametrize("name", ["fc_weight", "conv_weight"])
    def test_shapes(self, name, options, prefix, tmp_path):
        args, aux = params(network())
        shape = args[name].shape
        args[name] = mx.nd.ones((7, *shape[1:]))
        mx.model.save_checkpoint(prefix, 3, network(), args, aux)
        self.refused(
            rf"'{name}' of node '\w+' has shape \(7, .*\), not {re.escape(str(shape))}, as the symbol wants with "
            r"data \(2, 3, 8, 8\): correct the shapes of inputs, or these parameters are another network's",
            tmp_path,
            *options,
            "--shape",
            SHAPE,
        )


@pytest.mark.parametrize("converted", [False, True])
def test_the_shape_of_an_input_that_saved_weights_contradict(converted, prefix, tmp_path):
    if converted:
        mxmp("convert", prefix, 3, "-o", tmp_path / "out")
        prefix = tmp_path / "out"
    for shape, name in (("data:2,4,8,8", "conv_weight"), ("data:2,3,9,9", "fc_weight")):
        refused(rf"{prefix}-0003.params: '{name}' of node .* correct the shapes", "inspect", prefix, "--shape", shape)


@pytest.mark.parametrize("end", ["symbol.json", "0003.params"])
def test_a_file_in_place_of_its_prefix(end, prefix, tmp_path):
    match = rf"net-{end}' is a file; give its prefix, '{prefix}'"
    refused(match, "inspect", f"{prefix}-{end}", code=2)
    refused(match, "convert", f"{prefix}-{end}", 3, "-o", tmp_path / "out", code=2)
    refused(match, "convert", tmp_path / "other", 3, "-o", f"{prefix}-{end}", code=2)


def test_a_folder_in_place_of_a_prefix(prefix, tmp_path):
    refused(r"/' is a folder; put a name behind it", "convert", prefix, 3, "-o", f"{tmp_path}/", code=2)
    refused(r"'' is a folder", "inspect", "", code=2)


def test_a_missing_folder_is_found_before_any_work(prefix, tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path / "net-symbol.json"):
        message = f"{folder}/out: there is no folder {folder}; make it first"
        refused(re.escape(message), "convert", tmp_path / "other", 3, "-o", folder / "out")


def test_what_cannot_be_written_is_said(prefix, tmp_path):
    (tmp_path / "out-symbol.json").mkdir()
    refused(r"out-symbol.json: it is a folder; give another name to -o", "convert", prefix, 3, "-o", tmp_path / "out", "--force")
    assert not list(tmp_path.glob("out*.params"))


@pytest.mark.parametrize("epoch", ["-1", "x", "1.5"])
def test_epochs(epoch, prefix, tmp_path):
    refused(
        r"Usage: .*(No such option|not in the range|not a valid integer)", "convert", prefix, epoch, "-o", "x", code=2
    )
    refused(r"(not in the range|not a valid integer)", "convert", prefix, "-o", "x", "--", epoch, code=2)
    refused(r"(not in the range|not a valid integer)", "inspect", prefix, "--epoch", epoch, code=2)


def test_usage(prefix):
    refused(r"Missing argument 'EPOCH'", "convert", prefix, code=2)
    refused(r"Missing option '-o'", "convert", prefix, 3, code=2)
    refused(r"No such command 'convret'", "convret", code=2)


def test_help_and_version():
    assert mxmp("--version")[0] == f"mxmp, version {package.__version__}\n"
    assert {"convert", "inspect", "tune"} <= set(mxmp("--help")[0].split())
    for command in ("convert", "inspect", "tune"):
        assert "PREFIX" in mxmp(command, "-h")[0]


def test_a_folder_in_place_of_a_prefix_to_read(tmp_path):
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty" / "..", "a")
    save(tmp_path, "b")
    for command in (["inspect", tmp_path], ["inspect", f"{tmp_path}/"], ["convert", tmp_path, 3, "-o", tmp_path / "o"]):
        err = refused("is a folder; the prefixes in it: ", *command, code=2)
        assert f"'{tmp_path}/a', '{tmp_path}/b'" in " ".join(err.split())
    refused("empty' is a folder; the prefixes in it: none", "inspect", tmp_path / "empty", code=2)


def test_an_epoch_that_is_missing_comes_with_those_that_are_there(prefix, tmp_path):
    for epochs in ("there is epoch 3", "there are epochs 3, 12"):
        match = rf"net-0007.params: there is no such file; {epochs}\."
        refused(match, "inspect", prefix, "--epoch", 7)
        refused(match, "convert", prefix, 7, "-o", tmp_path / "o")
        save(tmp_path, epoch=12)
    refused(r"'--epoch': -1 is not in the range x>=0", "inspect", prefix, "--epoch", -1, code=2)
    refused(r"'--epoch': 'last' is not a valid integer", "inspect", prefix, "--epoch", "last", code=2)


def loops():
    """Return a network for each operator with bodies."""
    data, state, weight = map(mx.sym.var, ("data", "state", "weight"))

    def dense(x):
        return mx.sym.FullyConnected(x, weight, no_bias=True, num_hidden=4)

    out, _ = mx.sym.contrib.foreach(lambda x, s: (dense(x) + s, s + x), data, state)
    yield out
    out, _ = mx.sym.contrib.while_loop(lambda x: mx.sym.sum(x) < 3, lambda x: (dense(x), [x * 2]), [data], 4)
    yield out
    yield mx.sym.contrib.cond(mx.sym.sum(data) < 3, lambda: dense(data), lambda: state * 2)


LOCATIONS = [
    *((0, key) for key in ("remain_locs", "in_data_locs", "in_state_locs")),
    *((1, key) for key in ("cond_input_locs", "func_input_locs", "func_var_locs")),
    *((2, key) for key in ("cond_input_locs", "then_input_locs", "else_input_locs")),
]


@pytest.mark.parametrize(
    "loop, key, value",
    [
        *((*location, value) for location in LOCATIONS for value in ("()", "[99]", "[-1]")),
        *((loop, "num_out_data", value) for loop in (0, 1) for value in ("0", "7")),
    ],
)
def test_damaged_attributes_of_a_loop(loop, key, value, tmp_path):
    """MXNet trusts them, and some end the process."""
    data = json.loads(list(loops())[loop].tojson())
    (node,) = (node for node in data["nodes"] if "subgraphs" in node)
    node["attrs"][key] = value
    (tmp_path / "net-symbol.json").write_text(json.dumps(data))
    match = rf"net-symbol.json: node '{node['name']}' .*: its attributes do not say which .*{key}='"
    refused(match, "inspect", tmp_path / "net", "--shape", "data:2,3,4")
