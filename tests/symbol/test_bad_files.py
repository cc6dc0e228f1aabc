"""Bad files: one clear line that names the file and, where there is one, the node; and nothing is written.

Of nodes with more or fewer inputs than their operator takes MXNet reads beyond those that are there.
"""

import json

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import CheckpointError, GraphError, InferenceError, MxmpError, ParamsError, PassError, PolicyError
from mxmp.symbol import convert_checkpoint, convert_model, convert_symbol, load_params, load_symbol
from tests.rules.op_examples import EXAMPLES
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

    def __init__(self, folder, symbol=NETWORK, shapes=SHAPES):
        self.folder, self.shapes = folder, shapes
        self.prefix, self.out = str(folder / "net"), str(folder / "low")
        self.symbol_file, self.params_file = folder / "net-symbol.json", folder / "net-0000.params"
        mx.model.save_checkpoint(self.prefix, 0, symbol, *params_of(symbol, shapes))  # without a manifest

    def convert(self, policy="O2"):
        return convert_checkpoint(self.prefix, 0, self.out, policy, self.shapes)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def named(graph, name):
    """Return the node of a symbol's JSON that has a name, bodies included."""
    nodes = [*graph["nodes"], *(node for outer in graph["nodes"] for body in outer.get("subgraphs", ()) for node in body["nodes"])]
    return next(node for node in nodes if node["name"] == name)


OTHERS = {
    "empty": b"",
    "a list": b"[1, 2]",
    "not a number": b"NaN",
    "no nodes": b'{"heads": [[0, 0, 0]]}',
    "heads that are no list": b'{"nodes": [], "heads": 5}',
    "bytes": bytes(range(256)),
    "zeros": bytes(500),
    "deeply nested": b"[" * 100_000,
    "cut off": NETWORK.tojson()[:-2].encode(),
    "parameters": None,  # those of the network
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS.keys())
def test_a_file_that_is_no_symbol_is_named(content, files):
    files.symbol_file.write_bytes(files.params_file.read_bytes() if content is None else content)
    with nothing_written(files.folder), refused(CheckpointError, str(files.symbol_file)):
        files.convert()


# What is changed in a node of a network, and what the error names. A body is that of a loop.
CHANGES = {
    "out of order": ("fc", lambda g, n: g["nodes"].insert(0, g["nodes"].pop()), "'soft' (softmax): input 0"),
    "cyclic": ("bn", lambda g, n: n["inputs"][0].__setitem__(0, 9), "'bn' (BatchNorm): input 0 refers to node 'act'"),
    "output beyond": ("act", lambda g, n: n["inputs"][0].__setitem__(1, 9), "'act' (relu): input 0 refers to output 9"),
    "head beyond": ("act", lambda g, n: g.update(heads=[[99, 0, 0]]), "output 0 of the graph refers to node 99"),
    "no name": ("act", lambda g, n: n.pop("name"), "node 9"),
    "attributes are a list": ("fc", lambda g, n: n.update(attrs=[]), "'fc' (FullyConnected): 'attrs'"),
    "attribute has no such value": ("fc", lambda g, n: n["attrs"].update(num_hidden="many"), "num_hidden"),
    "unknown attribute": ("fc", lambda g, n: n["attrs"].update(bogus="1"), "bogus"),
    "attribute lacks": ("fc", lambda g, n: n["attrs"].pop("num_hidden"), "num_hidden"),
    "too few inputs": ("fc", lambda g, n: n["inputs"].pop(), "'fc' (FullyConnected): found 2 inputs, expected 3"),
    "too many inputs": ("fc", lambda g, n: n["inputs"].append([0, 0, 0]), "'fc' (FullyConnected): found 4 inputs, expected 3"),
    "unknown field": ("act", lambda g, n: n.update(extra=1), "extra"),
    "control dependency on a later node": ("bn", lambda g, n: n.update(control_deps=[9]), "'bn' (BatchNorm)"),
    "bodies are a number": ("act", lambda g, n: n.update(subgraphs=5), "'act' (relu)"),
    "unknown operator": ("act", lambda g, n: n.update(op="_my_op"), "mx.library.load"),
    "body: unknown operator": ("inner", lambda g, n: n.update(op="_my_op"), "'inner' (_my_op)"),
    "body: input beyond": ("inner", lambda g, n: n["inputs"][0].__setitem__(0, 99), "'inner' (FullyConnected): input 0"),
    "body: variable lost": ("inner", lambda g, n: n["inputs"].pop(), "'inner' (FullyConnected): found 1 inputs, expected 2"),
    "body without heads": ("_foreach0", lambda g, n: n["subgraphs"][0].update(heads=[]), "no outputs"),
    "no body": ("_foreach0", lambda g, n: n.update(subgraphs=[]), "_foreach0"),
    "wrong places of data": ("_foreach0", lambda g, n: n["attrs"].update(in_data_locs="[7]"), "_foreach0"),
    "places are no list": ("_foreach0", lambda g, n: n["attrs"].update(in_data_locs="nix"), "_foreach0"),
}


CHANGES.update({
    "attribute of no characters": ("fc", lambda g, n: n["attrs"].update(num_hidden="\ud800"), "MXNet cannot load it"),
    "variable with inputs": ("x", lambda g, n: n.update(inputs=[[0, 0, 0]]), "'x' (null): a variable cannot have inputs"),
    "no version": ("fc", lambda g, n: g["attrs"].update(mxnet_version=["int", 2**31 - 1]), "found the version 2147483647 of MXNet"),
    "an attribute that is explained at length": ("bn", lambda g, n: n["attrs"].update(kernel="3"), "Cannot find argument 'kernel'"),
    "a long operator": ("fc", lambda g, n: n.update(op="a" * 5000), "no operator 'aaa"),
})


@pytest.mark.parametrize("node, change, name", CHANGES.values(), ids=CHANGES.keys())
def test_a_malformed_node_is_named(node, change, name, tmp_path):
    files = Files(tmp_path, *(looped() if node in ("inner", "_foreach0") else ()))
    graph = json.loads(files.symbol_file.read_text())
    change(graph, named(graph, node))
    files.symbol_file.write_text(json.dumps(graph))
    with nothing_written(files.folder), refused(MxmpError, files.prefix, name):
        files.convert()


def places(value):
    """Yield (container, key) of everything within JSON."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from places(inner)


@pytest.mark.parametrize("value", [None, 99, "nix", {"a": 1}], ids=str)
def test_any_change_of_a_symbol_file_is_harmless_or_named(value, tmp_path):
    """In every place of the file at once would hide all but the first: one at a time, 168 files."""
    files, bad, converted = Files(tmp_path, *looped()), [], 0
    graph, params = json.loads(files.symbol_file.read_text()), load_params(str(files.params_file))
    found = list(places(graph))
    for container, key in found:
        before, container[key] = container[key], value
        files.symbol_file.write_text(json.dumps(graph))
        container[key] = before
        try:
            convert_model(load_symbol(str(files.symbol_file)), *params, "O2", files.shapes)
            converted += 1
        except MxmpError as e:
            assert_clear(e)
        except Exception as e:
            bad.append((container, key, type(e).__name__, str(e)))
    assert not bad
    assert len(found) == 168 and converted < len(found) / 2


NO_PARAMS = {
    "2 arrays have no names": [mx.nd.ones(2), mx.nd.ones(3)],
    **{f"it holds '{name}'": {name: mx.nd.ones(2)} for name in ("fc_weight", "grad:fc_weight", "arg:")},
}


@pytest.mark.parametrize("message, arrays", NO_PARAMS.items(), ids=NO_PARAMS.keys())
def test_a_file_that_holds_no_parameters_is_named(message, arrays, files):
    mx.nd.save(str(files.params_file), arrays)
    with nothing_written(files.folder), refused(CheckpointError, str(files.params_file), message):
        files.convert()


@pytest.mark.parametrize("path", ["symbol_file", "params_file"])
def test_a_file_that_is_missing_or_a_folder_is_named(path, files):
    getattr(files, path).unlink()
    with nothing_written(files.folder), refused(CheckpointError, str(getattr(files, path)), "no such file"):
        files.convert()
    getattr(files, path).mkdir()
    with nothing_written(files.folder), refused(CheckpointError, str(getattr(files, path))):
        files.convert()


def test_surplus_parameters_pass_as_they_do_in_mxnet(files):
    """A surplus auxiliary state is not taken for the argument of its name."""
    arrays = {**{f"arg:{name}": array for name, array in ARGS.items()}, **{f"aux:{name}": array for name, array in AUX.items()}}
    arrays.update({"arg:other_weight": mx.nd.ones((2, 2)), "aux:fc_weight": mx.nd.ones((1, 1))})
    mx.nd.save(str(files.params_file), arrays)
    stored = files.convert().arg_params
    assert (stored["other_weight"].dtype, stored["fc_weight"].dtype) == (np.float32, np.float16)


MARKS = {  # attributes of mxmp that a file may have, and what is said of them
    "a region in another dtype": ("fc", {"__mxmp_precision__": "bfloat16"}, PolicyError, "precision 'bfloat16'"),
    "a region in no dtype": ("fc", {"__mxmp_precision__": "nix"}, PolicyError, "precision 'nix'"),
    "an inserted node": ("x", {"__mxmp__": "cast"}, PassError, "node 'x' (null): its attributes that begin with '__mxmp'"),
    "a declared dtype": ("x", {"__mxmp_dtype__": "-7"}, InferenceError, "MXNet cannot infer its dtypes"),
}


@pytest.mark.parametrize("node, attrs, error, message", MARKS.values(), ids=MARKS)
def test_a_mark_that_does_not_fit_names_the_file_that_it_is_in(node, attrs, error, message, files):
    graph = json.loads(files.symbol_file.read_text())
    named(graph, node).setdefault("attrs", {}).update(attrs)
    files.symbol_file.write_text(json.dumps(graph))
    with nothing_written(files.folder), refused(error, f"{files.symbol_file}: ", message):
        files.convert()


INSERTED = {  # nodes that carry the mark of an inserted one, and what they cannot be
    "a variable": ("x", "cast"),
    "several outputs": ("bn", "cast"),
    "a factor of no product": ("x_cast_float16", "factor"),
}


@pytest.mark.parametrize("node, mark", INSERTED.values(), ids=INSERTED)
def test_a_mark_on_a_node_that_no_conversion_inserts_is_refused(node, mark):
    graph = json.loads(convert_symbol(NETWORK, "O1", SHAPES).tojson(remove_amp_cast=False))
    named(graph, node).setdefault("attrs", {})["__mxmp__"] = mark
    with refused(PassError, "its attributes that begin with '__mxmp' were changed; convert the original again"):
        convert_symbol(mx.sym.load_json(json.dumps(graph)), "float32")


def test_the_file_of_parameters_that_are_not_the_symbols_is_named(files):
    mx.nd.save(str(files.params_file), {"arg:other": mx.nd.ones((1,))})
    with refused(ParamsError, f"{files.params_file}: "):
        files.convert()


def text_of(op, attrs, count, version=10901, **fields):
    """Return the JSON of one node that reads a number of variables."""
    node = {"op": op, "name": "node", "attrs": attrs, "inputs": [[i, 0, 0] for i in range(count)], **fields}
    nodes = [*({"op": "null", "name": f"x{i}", "inputs": []} for i in range(count)), node]
    return json.dumps({"nodes": nodes, "heads": [[count, 0, 0]], "attrs": {"mxnet_version": ["int", version]},
                       "arg_nodes": [*range(count)], "node_row_ptr": [*range(count + 2)]})  # fmt: skip


@mx.operator.register("mxmp_test_two_and_a_state")
class Prop(mx.operator.CustomOpProp):
    def list_arguments(self):
        return ["one", "two"]

    def list_auxiliary_states(self):
        return ["state"]


CASES = {  # the operator, its attributes, and how many inputs it has
    "BatchNorm": ("BatchNorm", {}, 5),
    "a bias": ("FullyConnected", {"num_hidden": "2"}, 3),
    "no bias": ("FullyConnected", {"num_hidden": "2", "no_bias": "True"}, 2),
    "gamma": ("LeakyReLU", {"act_type": "prelu"}, 2),
    "no gamma": ("LeakyReLU", {}, 1),
    "a cell's state": ("RNN", {"mode": "lstm", "state_size": "2", "num_layers": "1"}, 4),
    "no cell": ("RNN", {"mode": "gru", "state_size": "2", "num_layers": "1"}, 3),
    "lengths": ("SequenceMask", {"use_sequence_length": "true"}, 2),
    "no lengths": ("SequenceMask", {}, 1),
    "lengths of two": ("CTCLoss", {"use_data_lengths": "1", "use_label_lengths": "1"}, 4),
    "as many as an attribute says": ("Concat", {"num_args": "3"}, 3),
    "a sum": ("add_n", {"num_args": "4"}, 4),
    "an alias": ("_Plus", {}, 2),
    "inputs without names": ("ROIPooling", {"pooled_size": "(2, 2)", "spatial_scale": "1"}, 2),
    "an optimizer's": ("sgd_mom_update", {"lr": "0.5"}, 3),
    "a loop": ("_foreach", {"num_args": "3", "in_data_locs": "(0,)", "in_state_locs": "(1,)", "remain_locs": "()",
                            "num_outputs": "2", "num_out_data": "1"}, 2),
    "a user's": ("Custom", {"op_type": "mxmp_test_two_and_a_state"}, 3),
}  # fmt: skip


@pytest.mark.parametrize("op, attrs, expected", CASES.values(), ids=CASES)
def test_a_node_has_the_inputs_of_its_operator(op, attrs, expected, tmp_path):
    file = tmp_path / "net-symbol.json"
    for count in {0, 1, expected - 1, expected + 1} - {expected}:
        file.write_text(text_of(op, attrs, count))
        with nothing_written(tmp_path), refused(CheckpointError, f"{file}: node 'node' ({op}): found {count} inputs, expected {expected}. "):
            convert_checkpoint(str(tmp_path / "net"), 0, str(tmp_path / "low"))
        with refused(GraphError, "node 'node' (", f"): found {count} inputs, expected {expected}. "):
            convert_symbol(mx.sym.load_json(text_of(op, attrs, count)))
    file.write_text(text_of(op, attrs, expected))
    if op != "_foreach":  # which needs a body too
        assert len(load_symbol(str(file)).list_inputs()) == expected


def test_every_example_of_an_operator_has_its_inputs(tmp_path):
    file = tmp_path / "net-symbol.json"
    for example in EXAMPLES:
        file.write_text(text_of(example.op, example.text_attrs, len(example.shapes)))
        assert len(load_symbol(str(file)).list_inputs()) == len(example.shapes), example


def test_only_auxiliary_states_may_lack_and_only_in_files_before_0_9(tmp_path):
    file = tmp_path / "net-symbol.json"
    file.write_text(text_of("BatchNorm", {"gamma_lr_mult": "2"}, 3, version=800))
    assert load_symbol(str(file)).list_auxiliary_states() == ["node_moving_mean", "node_moving_var"]
    for count, version in ((2, 800), (3, 900), (3, 10901)):
        file.write_text(text_of("BatchNorm", {"gamma_lr_mult": "2"} if version == 800 else {}, count, version))
        with refused(CheckpointError, f"{file}: node 'node' (BatchNorm): found {count} inputs, expected 5"):
            load_symbol(str(file))


def test_a_fused_operator_has_its_subgraph(tmp_path):
    file = tmp_path / "net-symbol.json"
    for fields in ({}, {"subgraphs": []}):
        file.write_text(text_of("_sg_mkldnn_fully_connected", {}, 3, **fields))
        with refused(CheckpointError, "node 'node' (_sg_mkldnn_fully_connected): found 0 subgraphs, expected 1"):
            load_symbol(str(file))
