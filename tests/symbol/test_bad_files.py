"""Bad files: one clear line that names the file and, where there is one, the node; and nothing is written."""

from __future__ import annotations

import copy
import json

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import CheckpointError, ConvertError, InferenceError, MxmpError, PolicyError
from mxmp.symbol import convert_checkpoint, convert_model, load_params, load_symbol
from tests.symbol.refusals import assert_clear, nothing_written, refused
from tests.symbol.small import convolutional, dense, params_of

NETWORK, SHAPES = convolutional()
ARGS, AUX = params_of(NETWORK, SHAPES)


def looped():
    """Return a network with a loop, and the shapes of its inputs."""
    weight = mx.sym.var("w", shape=(4, 4))
    rows = mx.sym.expand_dims(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=4, name="fc"), axis=0, name="rows")
    with mx.name.NameManager():  # which names the loop '_foreach0', whatever ran before
        out, _ = mx.sym.contrib.foreach(lambda x, s: (dense(x, "inner", weight, 4), s), rows, mx.sym.var("s"))
    return out, {"x": (2, 3), "s": (1,)}


class Files:
    """A sound checkpoint in a folder, to be damaged."""

    def __init__(self, folder, symbol, shapes):
        self.folder, self.shapes = folder, shapes
        self.prefix, self.out = str(folder / "net"), str(folder / "low")
        self.symbol_file, self.params_file = folder / "net-symbol.json", folder / "net-0000.params"
        mx.model.save_checkpoint(self.prefix, 0, symbol, *params_of(symbol, shapes))  # without a manifest

    def graph(self):
        return json.loads(self.symbol_file.read_text())

    def write(self, graph):
        self.symbol_file.write_text(json.dumps(graph))

    def convert(self):
        return convert_checkpoint(self.prefix, 0, self.out, "O2", self.shapes)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path, NETWORK, SHAPES)


@pytest.fixture
def loop_files(tmp_path):
    return Files(tmp_path, *looped())


def named(graph, name):
    """Return the node of a symbol's JSON that has a name, bodies included."""
    for node in graph["nodes"]:
        if node["name"] == name:
            return node
        for body in node.get("subgraphs", ()):
            found = named(body, name)
            if found:
                return found
    return None


def test_a_symbol_file_truncated_anywhere_is_named(files):
    whole = files.symbol_file.read_bytes()
    with nothing_written(files.folder):
        for size in [*range(0, len(whole) - 1, 397), len(whole) - 2]:
            files.symbol_file.write_bytes(whole[:size])
            with refused(CheckpointError, str(files.symbol_file), "truncated"):
                files.convert()
        files.symbol_file.write_bytes(whole)
    files.convert()


OTHERS = {
    "empty": b"",
    "a list": b"[1, 2]",
    "a number": b"5",
    "a text": b'"nodes"',
    "null": b"null",
    "not a number": b"NaN",
    "no nodes": b'{"heads": [[0, 0, 0]]}',
    "nodes that are no list": b'{"nodes": {"heads": 1}, "heads": [[0, 0, 0]]}',
    "heads that are no list": b'{"nodes": [], "heads": 5}',
    "nothing at all": b'{"nodes": [], "heads": []}',
    "bytes": bytes(range(256)),
    "zeros": bytes(500),
    "deeply nested": b"[" * 100_000,
    "parameters": None,  # those of the network
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS.keys())
def test_a_file_that_is_no_symbol_is_named(content, files):
    files.symbol_file.write_bytes(files.params_file.read_bytes() if content is None else content)
    with nothing_written(files.folder), refused(CheckpointError, str(files.symbol_file)):
        files.convert()


def at(graph, name):
    """Return the position of a node."""
    return [node["name"] for node in graph["nodes"]].index(name)


NODES = {
    "out of order": (lambda g: g["nodes"].insert(0, g["nodes"].pop()), ["'soft' (softmax): input 0"]),
    "reads itself": (
        lambda g: named(g, "act").update(inputs=[[at(g, "act"), 0, 0]]),
        ["'act' (relu): input 0", "or is itself"],
    ),
    "cyclic": (
        lambda g: named(g, "bn")["inputs"][0].__setitem__(0, at(g, "act")),
        ["'bn' (BatchNorm): input 0", "node 'act'"],
    ),
    "input beyond": (
        lambda g: named(g, "fc")["inputs"][1].__setitem__(0, 99),
        ["'fc' (FullyConnected): input 1", "99"],
    ),
    "output beyond": (lambda g: named(g, "act")["inputs"][0].__setitem__(1, 9), ["'act' (relu): input 0", "output 9"]),
    "head beyond": (lambda g: g.update(heads=[[99, 0, 0]]), ["output 0 of the graph", "99"]),
    "output of a head beyond": (
        lambda g: g["heads"][0].__setitem__(1, 7),
        ["output 0 of the graph", "output 7", "'soft'"],
    ),
    "no heads": (lambda g: g.update(heads=[]), ["no outputs"]),
    "no name": (lambda g: named(g, "act").pop("name"), ["node 9", "'name'"]),
    "no operator": (lambda g: named(g, "act").pop("op"), ["node 9", "'op'"]),
    "no inputs": (lambda g: named(g, "act").pop("inputs"), ["'act' (relu): 'inputs'"]),
    "name is a number": (lambda g: named(g, "act").update(name=5), ["node 9"]),
    "attributes are a list": (lambda g: named(g, "fc").update(attrs=[]), ["'fc' (FullyConnected): 'attrs'"]),
    "attribute is a number": (
        lambda g: named(g, "fc")["attrs"].update(num_hidden=5),
        ["'fc' (FullyConnected): 'attrs'"],
    ),
    "attribute has no such value": (
        lambda g: named(g, "fc")["attrs"].update(num_hidden="many"),
        ["num_hidden", '"fc"'],
    ),
    "unknown attribute": (lambda g: named(g, "fc")["attrs"].update(bogus="1"), ["bogus", '"fc"']),
    "attribute lacks": (lambda g: named(g, "fc")["attrs"].pop("num_hidden"), ["num_hidden", '"fc"']),
    "too few inputs": (lambda g: named(g, "fc")["inputs"].pop(), ["'fc'"]),
    "too many inputs": (lambda g: named(g, "fc")["inputs"].append([0, 0, 0]), ["'fc'"]),
    "unknown field of a node": (lambda g: named(g, "act").update(extra=1), ["net-symbol.json", "extra"]),
    "unknown field of the graph": (lambda g: g.update(extra=1), ["net-symbol.json", "extra"]),
    "control dependency on a later node": (
        lambda g: named(g, "bn").update(control_deps=[at(g, "act")]),
        ["'bn' (BatchNorm)"],
    ),
    "control dependency on itself": (lambda g: named(g, "act").update(control_deps=[at(g, "act")]), ["'act' (relu)"]),
    "control dependency beyond": (lambda g: named(g, "act").update(control_deps=[99]), ["net-symbol.json"]),
    "bodies are a number": (lambda g: named(g, "act").update(subgraphs=5), ["'act' (relu)", "subgraphs"]),
    "unknown operator": (lambda g: named(g, "act").update(op="_my_op"), ["'act' (_my_op)", "mx.library.load"]),
}


def refuses_changed(files, change, node, names):
    """Check that a symbol file, changed in one place, is refused with the names of the file and of what is wrong."""
    graph = files.graph()
    assert named(graph, node) is not None
    change(graph)
    files.write(graph)
    with nothing_written(files.folder), refused(MxmpError, files.prefix, *names):
        files.convert()


@pytest.mark.parametrize("change, names", NODES.values(), ids=NODES.keys())
def test_a_malformed_node_is_named(change, names, files):
    assert at(files.graph(), "act") == 9
    refuses_changed(files, change, "act", names)


BODIES = {
    "unknown operator": (lambda g: named(g, "inner").update(op="_my_op"), "'inner' (_my_op)"),
    "input beyond": (lambda g: named(g, "inner")["inputs"][0].__setitem__(0, 99), "'inner' (FullyConnected): input 0"),
    "cyclic": (lambda g: named(g, "inner")["inputs"][0].__setitem__(0, 2), "'inner' (FullyConnected): input 0"),
    "variable lost": (lambda g: named(g, "inner")["inputs"].pop(), "_foreach0"),
    "without heads": (lambda g: named(g, "_foreach0")["subgraphs"][0].update(heads=[]), "no outputs"),
    "no body": (lambda g: named(g, "_foreach0").update(subgraphs=[]), "_foreach0"),
    "body is a number": (lambda g: named(g, "_foreach0").update(subgraphs=[5]), "net-symbol.json"),
    "wrong places of data": (lambda g: named(g, "_foreach0")["attrs"].update(in_data_locs="[7]"), "_foreach0"),
    "places are no list": (lambda g: named(g, "_foreach0")["attrs"].update(in_data_locs="nix"), "_foreach0"),
}


@pytest.mark.parametrize("change, name", BODIES.values(), ids=BODIES.keys())
def test_a_malformed_body_of_a_loop_is_named(change, name, loop_files):
    refuses_changed(loop_files, change, "inner", [name])


def paths_of(value, path=()):
    """Yield the path to everything within JSON."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from paths_of(inner, (*path, key))


def replaced(graph, path, value):
    """Return JSON with something else in one place."""
    changed = target = copy.deepcopy(graph)
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return changed


@pytest.mark.parametrize("value", [None, 99, "nix", {"a": 1}], ids=str)
def test_any_change_of_a_symbol_file_is_harmless_or_named(value, loop_files):
    """In every place of the file at once would hide all but the first: one at a time, 168 files."""
    graph, bad, converted = loop_files.graph(), [], 0
    paths = list(paths_of(graph))
    for path in paths:
        text = json.dumps(replaced(graph, path, value))
        loop_files.symbol_file.write_text(text)
        try:
            symbol = load_symbol(str(loop_files.symbol_file))
            convert_model(symbol, *load_params(str(loop_files.params_file)), "O2", loop_files.shapes)
            converted += 1
        except MxmpError as e:
            assert_clear(e)
        except Exception as e:
            bad.append((path, type(e).__name__, str(e)))
    assert not bad
    assert len(paths) == 168 and converted < len(paths) / 2


NO_PARAMS = {
    "empty": b"",
    "JSON": b"{}",
    "zeros": bytes(500),
    "2 arrays have no names": [mx.nd.ones(2), mx.nd.ones(3)],
    **{f"it holds '{name}'": {name: mx.nd.ones(2)} for name in ("fc_weight", "grad:fc_weight", "arg:", ":fc_weight")},
}


@pytest.mark.parametrize("message, content", NO_PARAMS.items(), ids=NO_PARAMS.keys())
def test_a_file_that_holds_no_parameters_is_named(message, content, files):
    if isinstance(content, bytes):
        files.params_file.write_bytes(content)
    else:
        mx.nd.save(str(files.params_file), content)
    expected = () if isinstance(content, bytes) else (message,)
    with nothing_written(files.folder), refused(CheckpointError, str(files.params_file), *expected):
        files.convert()


@pytest.mark.parametrize("has_folder, message", [(False, "no such file"), (True, "")], ids=["missing", "folder"])
@pytest.mark.parametrize("lost", ["symbol_file", "params_file"])
def test_a_file_that_is_missing_or_a_folder_is_named(lost, has_folder, message, files):
    path = getattr(files, lost)
    path.unlink()
    if has_folder:
        path.mkdir()
    with nothing_written(files.folder), refused(CheckpointError, str(path), message):
        files.convert()


def rewritten(files, args, aux):
    arrays = {f"arg:{name}": array for name, array in args.items()}
    arrays.update({f"aux:{name}": array for name, array in aux.items()})
    mx.nd.save(str(files.params_file), arrays)


def lacking(arrays, name):
    """Return arrays but for one."""
    return {key: array for key, array in arrays.items() if key != name}


UNFIT = {
    "missing": (lacking(ARGS, "fc_weight"), AUX, ConvertError, "arg_params lacks 'fc_weight'"),
    "misspelled": (
        {**lacking(ARGS, "fc_weight"), "fc_wieght": ARGS["fc_weight"]},
        AUX,
        ConvertError,
        "arg_params lacks 'fc_weight', which the symbol has; the nearest are fc_wieght",
    ),
    "auxiliary states missing": (ARGS, {}, ConvertError, "aux_params lacks 'bn_moving_mean', 'bn_moving_var'"),
    "auxiliary state among the arguments": (
        {**ARGS, "bn_moving_var": AUX["bn_moving_var"]},
        lacking(AUX, "bn_moving_var"),
        ConvertError,
        "aux_params lacks 'bn_moving_var'",
    ),
    "argument among the auxiliary states": (
        lacking(ARGS, "fc_weight"),
        {**AUX, "fc_weight": ARGS["fc_weight"]},
        ConvertError,
        "arg_params lacks 'fc_weight'",
    ),
    "all of another network": ({"other_weight": mx.nd.ones((2, 2))}, {}, ConvertError, "'bn_moving_mean'"),
    "wrong shape": ({**ARGS, "fc_weight": mx.nd.ones((5, 7))}, AUX, InferenceError, "node 'fc'"),
    "wrong shape of an auxiliary state": (
        ARGS,
        {**AUX, "bn_moving_var": mx.nd.ones(9)},
        InferenceError,
        "'bn_moving_var'",
    ),
    "wrong shape of a scale": ({**ARGS, "bn_gamma": mx.nd.ones(9)}, AUX, ConvertError, "'bn_gamma'"),
    "wrong number of axes": ({**ARGS, "conv_weight": mx.nd.ones((4, 3))}, AUX, InferenceError, "node 'conv'"),
    "wrong dtype": ({**ARGS, "fc_weight": ARGS["fc_weight"].astype("int32")}, AUX, InferenceError, "node 'fc'"),
}


@pytest.mark.parametrize("args, aux, error, message", UNFIT.values(), ids=UNFIT.keys())
def test_parameters_that_do_not_fit_are_named(args, aux, error, message, files):
    rewritten(files, args, aux)
    with nothing_written(files.folder), refused(error, files.prefix, message):
        files.convert()


def test_surplus_parameters_pass_as_they_do_in_mxnet(files):
    """A surplus auxiliary state is not taken for the argument of its name."""
    rewritten(files, {**ARGS, "other_weight": mx.nd.ones((2, 2))}, {**AUX, "fc_weight": mx.nd.ones((1, 1))})
    stored = files.convert().arg_params
    assert (stored["other_weight"].dtype, stored["fc_weight"].dtype) == (np.float32, np.float16)


def test_a_wrong_policy_for_a_checkpoint_writes_nothing(files):
    with nothing_written(files.folder), refused(PolicyError, "'nix' matches no node"):
        convert_checkpoint(files.prefix, 0, files.out, "O2,name:nix=float32", files.shapes)
