"""Nodes of a file with more or fewer inputs than their operator takes: MXNet reads beyond those that are there."""

import json

import mxnet as mx
import pytest

from mxmp.errors import CheckpointError, GraphError
from mxmp.symbol import convert_checkpoint, convert_symbol, load_symbol
from tests.rules.op_examples import EXAMPLES
from tests.symbol.refusals import nothing_written, refused


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
