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
from mxmp.cli import commands
from tests.cli.checkpoints import SHAPES, contents, mxmp, network, params, save


def refused(match, *args, code=1):
    out, err = mxmp(*args, code=code)
    assert out == "" and "Traceback" not in err and "pickle" not in err
    if code == 1:
        assert err.startswith("mxmp: error: ") and err.count("\n") == 1
    assert re.search(match, " ".join(err.split())), err
    return err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("errors")
    for name in ("empty", "run", "prefixes", "blocked-symbol.json"):
        (folder / name).mkdir()
    prefix = save(folder)
    for name, epochs in {"two": (3, 12), "mixed": (4,), "prefixes/a": (3,), "prefixes/b": (3,)}.items():
        for epoch in epochs:
            save(folder, name, epoch)
    head = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="head")
    values = {"head_weight": mx.nd.ones((3, 5)), "head_bias": mx.nd.ones(3)}
    mx.model.save_checkpoint(str(folder / "other"), 3, head, values, {})
    mx.nd.save(str(folder / "mixed-0003.params"), {f"arg:{name}": value for name, value in values.items()})
    for name in ("fc_weight", "conv_weight"):
        args, aux = params(network())
        args[name] = mx.nd.ones((7, *args[name].shape[1:]))
        mx.model.save_checkpoint(str(folder / name), 3, network(), args, aux)
    mxmp("convert", prefix, 3, "-o", folder / "low")
    for file in ("taken-symbol.json", "taken-0004.params", "page.html", "text.npz", "run/gradients.json"):
        (folder / file).write_text("{")
    data = np.zeros(SHAPES["data"], np.float32)
    objects, words = np.array([{}], dtype=object), np.array(["a"])
    batches = {"batch": data, "words": words, "nan": data * np.nan, "objects": objects}
    for name, array in batches.items():
        np.savez(folder / f"{name}.npz", data=array)
    np.savez(folder / "wrong.npz", data=data, wrong=data)
    np.save(folder / "array.npy", data)
    (folder / "cut.npz").write_bytes((folder / "batch.npz").read_bytes()[:100])
    return folder


SHAPE = "--shape data:2,3,8,8"
NO_BATCH = "it is no .npz file with an array of numbers for each input; write one"
POLICIES = [  # and what is said of inputs: options of commands that convert
    ("--policy O9", 2, r"unknown policy 'O9'; the nearest are"),
    ("--policy O0 --output-dtype float16", 2, r"output_dtype='float16' with compute_dtype='float32'"),
    ("--policy O1 --output-dtype int7", 2, r"unknown dtype 'int7'"),
    ("--policy O1 --out-of-range wrap", 2, r"out_of_range='wrap': expected 'clamp' or 'float32'"),
    ("--keep-float32 a=b", 2, r"'a=b' is no pattern"),
    ("--keep-float32 'fx*'", 1, r"names: 'fx\*' matches no node; the nearest are softmax, fc"),
    ("--shape data", 2, r"'data' is no shape; expected one like 'data:1,3,224,224'"),
    ("--shape data:", 2, r"'data:' is no shape"),
    ("--shape data:2x3", 2, r"'data:2x3' is no shape"),
    ("--shape data:2,-3", 2, r"'data:2,-3' is no shape"),
    ("--shape data:0,3,8,8", 2, r"'data:0,3,8,8' has a size of 0; every size is 1 or more"),
    (f"{SHAPE} --shape data:1,3,8,8", 2, r"'data' is given twice"),
    ("--shape dota:2,3,8,8", 1, r"shapes: the symbol has no variable 'dota'; the nearest are data"),
    ("--shape data:2,3", 1, r"node 'conv': MXNet cannot infer its shapes"),
    ("--dtype data:int7", 2, r"'data:int7' has no dtype of MXNet; expected one like 'data:int32'"),
    ("--dtype int32", 2, r"'int32' names no input"),
    ("--dtype dota:int32", 1, r"dtypes: the symbol has no variable 'dota'"),
    (f"--shap {SHAPE}", 2, r"No such option:? '?--shap"),
]
UNFIT = r"'{}' of node '\w+' has shape \(7, .*\), not .*, as the symbol wants with data \(2, 3, 8, 8\): correct the shapes"
PARAMS = [  # of another network
    ("mixed", "", r"mixed-0003.params: aux_params lacks 'bn_moving_mean', 'bn_moving_var', which the symbol has; those given, "
     r"'head_(weight|bias)', 'head_(weight|bias)', seem to be another network's"),
    ("fc_weight", SHAPE, "fc_weight-0003.params: " + UNFIT.format("fc_weight")),
    ("conv_weight", SHAPE, "conv_weight-0003.params: " + UNFIT.format("conv_weight")),
]  # fmt: skip
REFUSED = [
    *((f"convert net 3 -o out {options}", code, match) for options, code, match in POLICIES),
    *((f"inspect net --policy O2 {options}", code, match) for options, code, match in POLICIES),
    *((f"convert {name} 3 -o out {options}", 1, match) for name, options, match in PARAMS),
    *((f"inspect {name} 3 {options}", 1, match) for name, options, match in PARAMS),
    *((f"{command} mixed 3 {SHAPE}", 1, PARAMS[0][2]) for command in ("benchmark", "compare", "ranges")),
    (f"benchmark fc_weight 3 {SHAPE}", 1, "fc_weight-0003.params: " + UNFIT.format("fc_weight")),
    *((f"{command} fc_weight 3 {SHAPE}", 1, "'fc_weight'") for command in ("compare", "ranges")),
    ("inspect net --shape data:2,4,8,8", 1, "net-0003.params: 'conv_weight' of node .* correct the shapes"),
    ("inspect low --shape data:2,3,9,9", 1, "low-0003.params: 'fc_weight' of node .* correct the shapes"),
    # Prefixes, files and folders.
    ("inspect nothing", 1, "nothing-symbol.json: there is no such file"),
    ("convert nothing 3 -o out", 1, "nothing-symbol.json: there is no such file"),
    *(
        (command.format(f"net-{end}"), 2, f"'net-{end}' is a file; give its prefix, 'net'")
        for end in ("symbol.json", "0003.params")
        for command in ("inspect {}", "convert {} 3 -o out", "convert nothing 3 -o {}")
    ),
    ("convert net 3 -o empty/", 2, "'empty/' is a folder; put a name behind it"),
    ("inspect ''", 2, "'' is a folder"),
    *(
        (command, 2, "is a folder; the prefixes in it: 'prefixes/a', 'prefixes/b'")
        for command in ("inspect prefixes", "inspect prefixes/", "convert prefixes 3 -o out")
    ),
    ("inspect empty", 2, "'empty' is a folder; the prefixes in it: none"),
    ("convert nothing 3 -o nowhere/out", 1, "nowhere/out: there is no folder .*nowhere; make it first"),
    ("convert nothing 3 -o net-symbol.json/out", 1, "there is no folder .*net-symbol.json; make it first"),
    ("convert net 3 -o blocked --force", 1, "blocked-symbol.json: it is a folder; give another name to -o"),
    *(
        (f"convert two {epoch} -o taken", 1, f"taken-{end}: it exists; give another name to -o, or --force to overwrite it")
        for epoch, end in ((3, "symbol.json"), (12, "symbol.json"))
    ),
    ("convert net 3 -o ./net --force", 1, "-o './net' is the prefix of the checkpoint itself"),
    *(
        (f"{command.format(name, 7)}", 1, f"{name}-0007.params: there is no such file; {there}")
        for command in ("inspect {} {}", "convert {} {} -o out")
        for name, there in (("net", "there is epoch 3."), ("two", "there are epochs 3, 12."))
    ),
    *(
        (command.format(epoch), 2, "(No such option|not in the range|not a valid integer)")
        for command in ("convert net {} -o x", "convert net -o x -- {}", "inspect net -- {}")
        for epoch in ("-1", "x", "1.5")
    ),
    ("convert net", 2, "Missing option '-o'"),
    ("convret", 2, "No such command 'convret'"),
    # Times.
    *(
        (f"benchmark net {options}", code, match)
        for options, code, match in [
            ("", 2, "give --data, or --shape of every input, such as --shape data:8,3,224,224"),
            ("--shape softmax_label:2", 1, "input 'data' has no shape; give --shape data:SIZES"),
            ("--shape dota:2,3,8,8", 1, "the network has no input 'dota'; the nearest are data"),
            (f"{SHAPE} --dtype dota:int32", 1, "has no input 'dota'"),
            ("--shape data:2,3", 1, "MXNet cannot infer its shapes"),
            (f"{SHAPE} --policy O9", 2, "unknown policy 'O9'"),
            (f"{SHAPE} --policy O1,name:typo=float32", 1, "names: 'typo' matches no node"),
            (f"{SHAPE} --objective speed", 2, "No such option"),
            (f"{SHAPE} --seconds 0", 2, r"0(.0)? is not in the range x>0"),
        ]
    ),
    (f"benchmark net {SHAPE} --keep-float32 fc", 2, "give --policy too"),
    (f"benchmark net {SHAPE} --gpu 99", 1, "--gpu 99: MXNet finds "),
    *(
        (f"{command} two {SHAPE}{more}", 1, "two: give the EPOCH of its parameters; there are epochs 3, 12")
        for command, more in (("benchmark", ""), ("compare", ""), ("ranges", ""), ("convert", " -o out"))
    ),
    # Values.
    ("compare net 3", 2, "give --data, or --shape of every input"),
    ("ranges net 3", 2, "give --data, or --shape of every input"),
    *(
        (
            f"{command} net 3 --data batch.npz --shape data:1,3,8,8",
            2,
            r"--shape data:1,3,8,8 contradicts --data batch.npz, in which 'data' has the shape \(2, 3, 8, 8\)",
        )
        for command in ("ranges", "compare", "benchmark", "inspect", "convert -o out")
    ),
    *((f"{name} net 3 --shape dota:2,3", 1, "the network has no input 'dota'") for name in ("compare", "ranges")),
    *((f"{name} net 3 --data nowhere.npz", 2, "File 'nowhere.npz' does not exist") for name in ("compare", "ranges")),
    *(
        (f"compare net 3 --data {file}", 1, f"{file}: {NO_BATCH}")
        for file in ("text.npz", "cut.npz", "objects.npz", "words.npz", "array.npy")
    ),
    ("compare net 3 --data wrong.npz", 1, "'wrong'"),
    *((f"{name} net 3 --data nan.npz", 1, "nan.npz: 'data' holds NaN") for name in ("compare", "ranges")),
    (f"compare net 3 {SHAPE} --policy O0", 1, "is float32, so there is nothing to compare"),
    (f"compare low 3 {SHAPE}", 1, "policy: the network is converted already, and its symbol does not say by which"),
    (f"compare net 3 {SHAPE} --worst 0", 2, "0 is not in the range"),
    (f"compare net 3 {SHAPE} -o page.html", 1, "page.html: it exists"),
    # Runs, programs and jobs.
    ("report empty -o new.html", 1, "empty: this folder holds no result of mxmp, such as report.json"),
    ("report missing -o new.html", 1, "there is no such folder or file"),
    ("report run -o new.html", 1, "gradients.json: this is no gradients of mxmp: it is no JSON"),
    ("report run -o page.html", 1, "page.html: it exists"),
    ("report run -o nowhere/page.html", 1, "there is no folder"),
    ("run nowhere.py --option", 2, "there is no file 'nowhere.py'"),
    ("run package.train", 2, "there is no file 'package.train'; write `-m` before the name of a module"),
    ("run", 2, "Missing argument 'SCRIPT'"),
    ("run --nosuch script.py", 2, "--nosuch"),
    ("launch true", 2, "Missing option '-n'"),
    ("launch -n 1", 2, "Missing argument 'COMMAND...'"),
    ("launch -n 1 --nosuch true", 2, "--nosuch"),
    ("launch -n 0 true", 2, "0 is not in the range x>=1"),
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
    assert set(re.findall(r"^## mxmp (\w+)$", page, re.MULTILINE)) == set(commands.commands)
    assert set(re.findall(r"^:::{command} (\w+)$", page, re.MULTILINE)) == set(commands.commands)
    assert "..." not in mxmp("--help")[0].partition("Commands:")[2]


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


@pytest.mark.parametrize(
    "loop, key, value",
    [
        *((*location, value) for location in LOCATIONS for value in ("()", "[99]", "[-1]")),
        *((loop, "num_out_data", value) for loop in (0, 1) for value in ("0", "7")),
    ],
)
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
    "another version": lambda data: data[:6] + b"\x09" + data[7:],
    "objects": lambda data: data.replace(b"<f4", b"|O8"),
    "no array": lambda data: b"",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_of_a_batch_is_named(damage, tmp_path):
    array, file = io.BytesIO(), tmp_path / "batch.npz"
    np.save(array, np.ones((2, 3), np.float32))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.npy", damage(array.getvalue()))
    refused("batch.npz: it is no .npz file with an array of numbers for each input", "compare", save(tmp_path), 3, "--data", file)
