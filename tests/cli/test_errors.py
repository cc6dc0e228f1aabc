"""Bad input: one line that says what to do, and an exit code; never a traceback, and no file is written."""

import io
import json
import re
import shlex
import sys
import zipfile
from pathlib import Path
from unittest import mock

import mxnet as mx
import numpy as np
import pytest

import mxmp as package
from tests.cli.checkpoints import SHAPES, contents, mxmp, network, params, save


def refused(match, *args, code=1):
    out, err = mxmp(*args, code=code)
    assert out == "" and "Traceback" not in err and "pickle" not in err
    assert err.startswith("mxmp: error: ") and err.count("\n") == 1
    assert re.search(match, " ".join(err.split())), err
    return err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with checkpoints, files and folders, some of them bad."""
    folder = tmp_path_factory.mktemp("errors")
    for name in ("empty", "run", "prefixes", "blocked-symbol.json"):
        (folder / name).mkdir()
    prefix = save(folder)
    for name, epochs in {"two": (3, 12), "prefixes/a": (3,), "prefixes/b": (3,)}.items():
        for epoch in epochs:
            save(folder, name, epoch)
    args, aux = params(network())
    mx.model.save_checkpoint(str(folder / "wide"), 3, network(), {**args, "fc_weight": mx.nd.ones((7, 144))}, aux)
    mxmp("convert", prefix, 3, "-o", folder / "low")
    for file in ("taken-symbol.json", "taken-0004.params", "page.html", "text.npz", "run/gradients.json"):
        (folder / file).write_text("{")
    data = np.zeros(SHAPES["data"], np.float32)
    for name, array in {"batch": data, "words": np.array(["a"]), "nan": data * np.nan}.items():
        np.savez(folder / f"{name}.npz", data=array)
    return folder


SHAPE = "--shape data:2,3,8,8"
UNFIT = r"wide-0003.params: 'fc_weight' of node '\w+' has shape \(7, .*\), not .*, as the symbol wants with data \(2, 3, 8, 8\): correct"
REFUSED = [  # a command, its exit code, and what it says
    # Policies and what is said of inputs.
    ("convert net 3 -o out --policy O9", 2, r"unknown policy 'O9'; the nearest are"),
    ("inspect net --policy O0 --output-dtype float16", 2, r"output_dtype='float16' with compute_dtype='float32'"),
    ("convert net 3 -o out --policy O1 --out-of-range wrap", 2, r"out_of_range='wrap': expected 'clamp' or 'float32'"),
    ("convert net 3 -o out --keep-float32 a=b", 2, r"'a=b' is no pattern"),
    ("inspect net --policy O2 --keep-float32 'fx*'", 1, r"names: 'fx\*' matches no node; the nearest are softmax, fc"),
    ("convert net 3 -o out --shape data:2x3", 2, r"'data:2x3' is no shape; expected one like 'data:1,3,224,224'"),
    ("inspect net --shape data:0,3,8,8", 2, r"'data:0,3,8,8' has a size of 0; every size is 1 or more"),
    (f"inspect net {SHAPE} --shape data:1,3,8,8", 2, r"'data' is given twice"),
    ("convert net 3 -o out --shape dota:2,3,8,8", 1, r"shapes: the symbol has no variable 'dota'; the nearest are data"),
    ("convert net 3 -o out --shape data:2,3", 1, r"node 'conv': MXNet cannot infer its shapes"),
    ("inspect net --dtype data:int7", 2, r"'data:int7' has no dtype of MXNet; expected one like 'data:int32'"),
    ("inspect net --dtype int32", 2, r"'int32' names no input"),
    ("--nothing", 2, r"No such option.*--nothing.* See `mxmp --help`"),
    ("nothing", 2, r"No such command 'nothing'.* See `mxmp --help`"),
    ("convert net 3", 2, r"Missing option '-o' / '--out'.* See `mxmp convert --help`"),
    ("inspect net three", 2, r"'three' is not a valid whole number"),
    (f"benchmark net {SHAPE} --seconds x", 2, r"'x' is not a valid number"),
    # Parameters of another network.
    *((f"{command} {SHAPE}", 1, UNFIT) for command in ("convert wide 3 -o out", "inspect wide 3", "benchmark wide 3")),
    *((f"{command} wide 3 {SHAPE}", 1, "'fc_weight'") for command in ("compare", "ranges")),
    ("inspect low --shape data:2,3,9,9", 1, "low-0003.params: 'fc_weight' of node .* correct the shapes"),
    # Prefixes, files and folders.
    ("convert nothing 3 -o out", 1, "nothing-symbol.json: there is no such file"),
    ("inspect net-symbol.json", 2, "'net-symbol.json' is a file; give its prefix, 'net'"),
    ("convert nothing 3 -o net-0003.params", 2, "'net-0003.params' is a file; give its prefix, 'net'"),
    ("convert net 3 -o empty/", 2, "'empty/' is a folder; put a name behind it"),
    ("inspect prefixes/", 2, "is a folder; the prefixes in it: 'prefixes/a', 'prefixes/b'"),
    ("inspect empty", 2, "'empty' is a folder; the prefixes in it: none"),
    ("convert nothing 3 -o nowhere/out", 1, "nowhere/out: there is no folder .*nowhere; make it first"),
    ("convert net 3 -o blocked --force", 1, "blocked-symbol.json: it is a folder; give another name to -o"),
    ("convert two 12 -o taken", 1, "taken-symbol.json: it exists; give another name to -o, or --force to overwrite it"),
    ("convert net 3 -o ./net --force", 1, "-o './net' is the prefix of the checkpoint itself"),
    ("inspect net 7", 1, "net-0007.params: there is no such file; there is epoch 3."),
    (f"compare two {SHAPE}", 1, "two: give the EPOCH of its parameters; there are epochs 3, 12"),
    # Times and values.
    ("benchmark net", 2, "give --data, or --shape of every input, such as --shape data:8,3,224,224"),
    ("benchmark net --shape softmax_label:2", 1, "input 'data' has no shape; give --shape data:SIZES"),
    (f"benchmark net {SHAPE} --keep-float32 fc", 2, "give --policy too"),
    (f"benchmark net {SHAPE} --gpu 99", 1, "--gpu 99: MXNet finds "),
    ("ranges net 3 --data batch.npz --shape data:1,3,8,8", 2, r"--shape data:1,3,8,8 contradicts --data batch.npz"),
    *((f"compare net 3 --data {file}.npz", 1, f"{file}.npz: it is no .npz file with an array of numbers for each input") for file in ("text", "words")),
    ("ranges net 3 --data nan.npz", 1, "nan.npz: 'data' holds NaN"),
    (f"compare net 3 {SHAPE} --policy O0", 1, "is float32, so there is nothing to compare"),
    (f"compare low 3 {SHAPE}", 1, "policy: the network is converted already, and its symbol does not say by which"),
    (f"compare net 3 {SHAPE} -o page.html", 1, "page.html: it exists"),
    # Runs, programs and jobs.
    ("report empty -o new.html", 1, "empty: this folder holds no result of mxmp, such as report.json"),
    ("report run -o new.html", 1, "gradients.json: this is no gradients of mxmp: it is no JSON"),
    ("report run -o page.html", 1, "page.html: it exists"),
    ("run package.train", 2, "there is no file 'package.train'; write `-m` before the name of a module"),
    ("launch -n 1 --hosts 10.0.0.1 --timeout 9 true", 2, "--hosts only prints commands; leave --timeout and --host out"),
    ("launch -n 1 --hosts node1 true", 1, "host 'node1': MXNet's processes listen on and are found by an IPv4 address"),
    ("launch -n 1 --host 192.0.2.1 true", 1, "cannot listen on 192.0.2.1"),
    ("launch -n 1 no-such-program", 1, "worker 0: cannot run 'no-such-program': there is no such command"),
]


@pytest.mark.parametrize("command, code, match", REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_cannot_be_done_is_said_and_changes_no_file(command, code, match, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = contents(folder)
    refused(match, *shlex.split(command), code=code)
    assert contents(folder) == before


@pytest.mark.parametrize("part", [0.0, 0.1, 0.999])
@pytest.mark.parametrize(
    "end, match", [("symbol.json", "not a symbol's JSON"), ("0003.params", ".* The file is truncated")]
)
def test_a_truncated_file_is_named(end, match, part, tmp_path):
    prefix, file = save(tmp_path), tmp_path / f"net-{end}"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * part)])
    refused(f"net-{end}: {match}", "convert", prefix, 3, "-o", tmp_path / "out")
    refused(f"net-{end}: {match}", "inspect", prefix)


def test_an_error_of_mxnet_is_one_line(tmp_path):
    error = mx.MXNetError("Traceback (most recent call last):\n  File kernel.cc\nMXNetError: no memory")
    with mock.patch.object(sys.modules["mxmp.symbol.convert"], "convert_model", side_effect=error):
        refused("mxmp: error: MXNet: no memory", "convert", save(tmp_path), 3, "-o", tmp_path / "out")


def test_version_and_help_name_the_commands_and_their_arguments():
    assert mxmp("--version")[0] == f"mxmp, version {package.__version__}\n"
    assert {"benchmark", "convert", "inspect"} <= set(mxmp("--help")[0].split())
    assert all("PREFIX" in mxmp(command, "-h")[0] for command in ("benchmark", "convert", "inspect"))


def test_the_page_of_commands_has_each_command_and_the_list_has_whole_sentences():
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    listed = mxmp("--help")[0].partition("Commands:")[2]
    commands = sorted(re.findall(r"^  (\w+) ", listed, re.MULTILINE))
    assert sorted(re.findall(r"^## mxmp (\w+)$", page, re.MULTILINE)) == commands
    assert sorted(re.findall(r"^:::{command} (\w+)$", page, re.MULTILINE)) == commands
    assert "..." not in listed


def loops():
    data, state, weight = map(mx.sym.var, ("data", "state", "weight"))
    dense = mx.sym.FullyConnected(data, weight, no_bias=True, num_hidden=4)
    yield mx.sym.contrib.foreach(lambda x, s: (x * weight + s, s + x), data, state)[0]
    yield mx.sym.contrib.while_loop(lambda x: mx.sym.sum(x) < 3, lambda x: (x * weight, [x * 2]), [data], 4)[0]
    yield mx.sym.contrib.cond(mx.sym.sum(data) < 3, lambda: dense, lambda: state * 2)


LOCATIONS = [
    *((0, key) for key in ("remain_locs", "in_data_locs", "in_state_locs")),
    *((1, key) for key in ("cond_input_locs", "func_input_locs", "func_var_locs")),
    *((2, key) for key in ("cond_input_locs", "then_input_locs", "else_input_locs")),
]


@pytest.mark.parametrize("loop, key, value", [*((*each, "[99]") for each in LOCATIONS), (0, "num_out_data", "7"), (1, "num_out_data", "0")])
def test_damaged_attributes_of_a_loop_are_named(loop, key, value, tmp_path):
    """MXNet trusts them, and some end the process."""
    data = json.loads(list(loops())[loop].tojson())
    (node,) = (node for node in data["nodes"] if "subgraphs" in node)
    node["attrs"][key] = value
    (tmp_path / "net-symbol.json").write_text(json.dumps(data))
    match = rf"net-symbol.json: node '{node['name']}' .*: its attributes do not say which .*{key}='"
    refused(match, "inspect", tmp_path / "net", "--shape", "data:2,3,4")


DAMAGES = {  # of the header of an array in a file of a batch
    "open brackets": lambda data: data[:10] + b"(" * (len(data) - 11) + b"\n",
    "a huge shape": lambda data: data.replace(b"(2, 3), }" + b" " * 12, b"(2, 30000000000000), }"),
    "objects": lambda data: data.replace(b"<f4", b"|O8"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_of_a_batch_is_named(damage, tmp_path):
    array, file = io.BytesIO(), tmp_path / "batch.npz"
    np.save(array, np.ones((2, 3), np.float32))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.npy", damage(array.getvalue()))
    refused("batch.npz: it is no .npz file with an array of numbers for each input", "compare", save(tmp_path), 3, "--data", file)
