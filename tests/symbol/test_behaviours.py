"""What a user can check of the engine: networks in, networks out, by public names alone. docs/behaviours.md lists it."""

import json
import os

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp import Policy
from mxmp.errors import CheckpointError, PolicyError
from mxmp.symbol import (
    convert_checkpoint,
    convert_model,
    convert_symbol,
    from_graph,
    load_checkpoint,
    load_params,
    load_symbol,
    on_cpu,
    save_checkpoint,
    to_graph,
)
from tests.full_disk import files_of_at_most
from tests.symbol.measure import nodes_of
from tests.symbol.small import casts_of, convolutional, dense, dtypes_of, params_of, precisions, run, snapshot, text
from tests.values import BFLOAT16

DATA = mx.sym.var("x")
SHAPES = {"x": (4, 6)}


def model(symbol, policy="O1", shapes=SHAPES, **options):
    return convert_model(symbol, *params_of(symbol, shapes), policy, shapes, **options)


def perceptron():
    return mx.sym.softmax(dense(mx.sym.relu(dense(DATA, "a"), name="act"), "b"), name="soft")


def recurrent():
    """A loop whose state goes through a layer."""

    def step(row, state):
        new = mx.sym.tanh(dense(mx.sym.elemwise_add(row, state, name="sum"), "inner"), name="new")
        return new, new

    outputs, state = mx.sym.contrib.foreach(step, mx.sym.var("rows"), mx.sym.var("state"), name="loop")
    return mx.sym.Group([outputs, state]), {"rows": (3, 4, 6), "state": (4, 6)}


# Graphs.


def ordered():
    """A node that has to run after another, whose value it does not read."""
    graph = json.loads(text(mx.sym.Group([mx.sym.relu(DATA, name="first"), mx.sym.tanh(DATA, name="second")])))
    graph["nodes"][2]["control_deps"] = [1]
    return mx.sym.load_json(json.dumps(graph)), {}


@pytest.mark.behaviour(1)
@pytest.mark.parametrize("make", [convolutional, recurrent, ordered])
def test_a_network_comes_back_from_its_graph_unchanged(make):
    symbol = mx.sym.Group([make()[0], mx.sym.var("é \x01", attr={"__layer__": 'a "b"'}, dtype="int32")])
    assert text(from_graph(to_graph(symbol))) == text(symbol)


@pytest.mark.behaviour(2)
@pytest.mark.parametrize("beyond", [0, 90])
def test_a_malformed_node_is_refused_by_its_name(beyond, tmp_path):
    graph = json.loads(text(perceptron()))
    (node,) = (node for node in graph["nodes"] if node["name"] == "b")
    missing = len(graph["nodes"]) + beyond
    node["inputs"][1] = [missing, 0, 0]
    (tmp_path / "net-symbol.json").write_text(json.dumps(graph))
    with pytest.raises(CheckpointError, match=f"node 'b' .* {missing}"):
        load_symbol(str(tmp_path / "net-symbol.json"))


# Rules.


@pytest.mark.behaviour(3)
def test_products_run_in_float16_and_softmax_in_float32():
    rows = precisions(model(perceptron()))
    assert rows == {"a": "float16", "act": "float16", "b": "float16", "soft": "float32"}


ROWS = {
    "Embedding": lambda table: mx.sym.Embedding(DATA, table, input_dim=2050, output_dim=6),
    "take": lambda table: mx.sym.take(table, DATA),
    "pick": lambda table: mx.sym.expand_dims(mx.sym.pick(mx.sym.transpose(table), DATA), axis=0),
}


@pytest.mark.behaviour(4)
@pytest.mark.parametrize("read", ROWS)
def test_an_index_is_never_rounded(read):
    """2049 is no float16 number; the rows that it finds are cast, it is not."""
    table = np.zeros((2050, 6), np.float32)
    table[2049] = 1
    symbol = dense(ROWS[read](dense(mx.sym.var("table"), "layer")))
    args = {"layer_weight": mx.nd.array(np.eye(6)), "fc_weight": mx.nd.array(np.eye(6)), "table": mx.nd.array(table)}
    x = [2049] * (6 if read == "pick" else 1)
    found = convert_model(symbol, args, {}, "O2", {"x": (len(x),)})
    assert run(on_cpu(found.symbol), {**found.arg_params, "x": x})[0].tolist() == [[1] * 6]


CONSTANTS = [(65504.0, "float16"), (65536.0, "float32"), (-1e9, "float32"), (1e-9, "float32"), (-1e-9, "float32")]


@pytest.mark.behaviour(5)
@pytest.mark.parametrize(("scalar", "precision"), CONSTANTS)
def test_an_operator_with_a_constant_beyond_float16_stays_float32(scalar, precision):
    symbol = dense(dense(DATA, "a") * scalar, "b")
    assert [row.precision for row in model(symbol).report.rows if row.op == "_mul_scalar"] == [precision]


SUMS = [
    (1024, (0, -1), "float16"),
    (1025, (0, -1), "float32"),
    (1024, (0, 32, -1), "float16"),
    (1056, (0, 32, -1), "float32"),  # 32 * 33
]


@pytest.mark.behaviour(6)
@pytest.mark.parametrize(("length", "shape", "precision"), SUMS)
def test_a_sum_of_more_than_1024_terms_stays_float32(length, shape, precision):
    rows = mx.sym.Reshape(dense(DATA, "a", hidden=length), shape=shape)
    total = mx.sym.sum(rows, axis=tuple(range(1, len(shape))), keepdims=True, name="total")
    assert precisions(model(dense(total, "b")))["total"] == precision


@pytest.mark.behaviour(7)
def test_batch_norm_keeps_its_parameters_in_float32():
    symbol, shapes = convolutional()
    found = model(symbol, "O2", shapes)
    stored = dtypes_of({**found.arg_params, **found.aux_params})
    wide = {"bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"}
    assert {name for name, dtype in stored.items() if dtype == "float32"} == wide
    assert not wide & set(casts_of(found.symbol))  # nor are they read as float16


@pytest.mark.behaviour(8, "float64 and integers")
@pytest.mark.parametrize("policy", ["O2", "O3", "O2,output=float16"])
def test_other_dtypes_are_left_alone(policy):
    weight = mx.sym.Cast(mx.sym.var("weight"), dtype="float64")
    wide = dense(mx.sym.Cast(dense(DATA, "a"), dtype="float64"), "wide", weight)
    count = mx.sym.var("n", dtype="int32") + 1
    symbol = mx.sym.Group([mx.sym.exp(wide, name="exp"), mx.sym.slice_axis(count, axis=0, begin=0, end=1, name="one")])
    args = {"a_weight": mx.nd.ones((6, 6)), "weight": mx.nd.ones((6, 6))}
    found = convert_model(symbol, args, {}, policy, {"x": (4, 6), "n": (1,)}, {"x": "float32", "n": "int32"})
    rows = precisions(found)
    assert rows["a"] == "float16" and {rows[name] for name in ("wide", "exp", "one")} == {"as it was"}
    values = {**found.arg_params, "x": np.full((4, 6), 0.01), "n": mx.nd.array([2049], dtype="int32")}
    large, one = run(on_cpu(found.symbol), values)
    assert (large.dtype, one.dtype, one[0]) == (np.float64, np.int32, 2050)


# Policies.


FIELDS = {
    "keep_batchnorm_fp32": True,
    "last_layer_fp32": True,
    "out_of_range": "float32",
    "ops": {"exp": "float32"},
    "names": {"a*": "float32", "b": "float32"},
    "blocks": {"stage1": "float32"},
    "loss_scale": 128,
}


@pytest.mark.behaviour(9)
@pytest.mark.parametrize("name", ["O1", "O2", "O3", "mixed_bfloat16"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_policy_parses_from_what_it_prints(name, field):
    policy = Policy.parse(name, **{field: FIELDS[field]})
    assert Policy.parse(str(policy)) == policy != Policy.parse(name) == Policy.parse(str(Policy.parse(name)))


@pytest.mark.behaviour(10)
def test_the_override_by_name_beats_that_by_operator():
    def found(text):
        return precisions(model(perceptron(), text))

    assert found("O1,op:FullyConnected=float32")["a"] == "float32"
    both = found("O1,op:FullyConnected=float32,name:a=float16")
    assert (both["a"], both["b"]) == ("float16", "float32")
    both = found("O1,op:relu=float16,op:softmax=float16,name:soft=float32")
    assert (both["act"], both["soft"]) == ("float16", "float32")


@pytest.mark.behaviour(11)
def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_name():
    for convert in (convert_symbol, model):
        with pytest.raises(PolicyError, match="'sof' matches no node; the nearest are soft"):
            convert(perceptron(), "O1,name:sof=float16")


# Casts.


@pytest.mark.behaviour(12, "the widest dtype")
def test_a_node_behind_an_exponential_stays_float32():
    """A softmax written by hand: its sum would overflow in float16. A reshape between them changes nothing."""
    power = mx.sym.exp(dense(DATA, "a"), name="exp")
    for values in (power, mx.sym.Reshape(power, shape=(0, -1), name="same")):
        total = mx.sym.sum(values, axis=1, keepdims=True, name="sum")
        rows = precisions(model(dense(mx.sym.broadcast_div(values, total, name="ratio"), "b")))
        assert (rows["sum"], rows["ratio"]) == ("float32", "float32") and rows["b"] == "float16"


def test_a_node_behind_an_exponential_of_the_step_before_stays_float32():
    """The state of a loop carries it there."""

    def step(row, state):
        total = mx.sym.elemwise_add(dense(row, "a"), state, name="total")
        return dense(total, "b"), mx.sym.exp(total, name="exp")

    outputs, _ = mx.sym.contrib.foreach(step, mx.sym.var("rows"), dense(DATA, "first"))
    assert precisions(model(outputs, "O1", {**SHAPES, "rows": (3, 4, 6)}))["total"] == "float32"


@pytest.mark.behaviour(13)
def test_two_readers_share_one_cast():
    symbol = mx.sym.Group([dense(DATA, "a"), dense(DATA, "b")])
    assert casts_of(convert_symbol(symbol, "O1", SHAPES)).count("x") == 1


@pytest.mark.behaviour(15)
def test_resnet_50_keeps_two_casts_of_activations():
    """The image to float16, the logits back: none within."""
    symbol = mx.gluon.model_zoo.vision.resnet50_v1(prefix="net_")(mx.sym.var("data"))
    found = convert_symbol(symbol, "O2", {"data": (1, 3, 224, 224)})
    assert len(casts_of(found)) == 2 and "data" in casts_of(found)


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("mean", ["an input", "a parameter"])
def test_an_input_is_narrowed_for_layers_alone(mean):
    """Data, labels and states may need more than 11 bits: subtracting a mean comes first, in float32."""
    symbol = dense(mx.sym.broadcast_sub(DATA, mx.sym.var("mean", shape=(1, 6)), name="centred"))
    found = model(symbol, "O1", {**SHAPES, "mean": (1, 6)} if mean == "an input" else SHAPES)
    assert precisions(found)["centred"] == "float32" and casts_of(found.symbol)[0] == "centred"


@pytest.mark.behaviour(17)
def test_outputs_keep_their_names_and_are_float32():
    symbol = mx.sym.Group([dense(DATA, "a"), mx.sym.relu(dense(DATA, "b"), name="act")])
    found = convert_symbol(symbol, "O1", SHAPES)
    assert found.list_outputs() == symbol.list_outputs() == ["a_output", "act_output"]
    assert list(found.infer_type(x="float32")[1]) == [np.float32] * 2


@pytest.mark.behaviour(18)
def test_a_loop_runs_its_layers_in_float16_and_keeps_its_state_in_float32():
    symbol, shapes = recurrent()
    found = model(symbol, "O1", shapes)
    assert precisions(found)["inner"] == "float16"
    (loop,) = (node for node in nodes_of(found.symbol) if node["op"] == "_foreach")
    assert any(node["op"] == "Cast" for node in loop["subgraphs"][0]["nodes"])
    assert list(found.symbol.infer_type(rows="float32", state="float32")[1]) == [np.float32] * 2
    values = {**{name: np.full(shape, 0.1) for name, shape in shapes.items()}, **found.arg_params}
    for low, exact in zip(run(on_cpu(found.symbol), values), run(symbol, values)):
        assert 0 < np.abs(low - exact).max() < 2.0**-9
    followed = model(dense(symbol[1], "last"), "O1", shapes)  # where the state is no output of the network
    (loop,) = (node for node in nodes_of(followed.symbol) if node["op"] == "_foreach")
    body = loop["subgraphs"][0]
    state = body["nodes"][body["heads"][-1][0]]
    assert (state["op"], state["attrs"]["dtype"]) == ("Cast", "float32")


@pytest.mark.behaviour(19)
@pytest.mark.parametrize(("dtype", "expected"), [("float16", np.float16(7 / 3)), ("int32", 2)])
def test_the_casts_of_the_network_itself_stay(dtype, expected):
    symbol = dense(mx.sym.Cast(mx.sym.Cast(DATA, dtype=dtype, name="low"), dtype="float32", name="back"))
    found = convert_symbol(symbol, "O1", SHAPES)
    assert run(on_cpu(found), {"x": np.full((4, 6), 7 / 3), "fc_weight": np.eye(6)})[0][0, 0] == expected
    assert text(convert_symbol(found, "O0")) == text(symbol)


# Emulation, folding.


@pytest.mark.behaviour(20)
def test_a_float16_product_on_a_cpu_has_numpys_bits():
    """Operands and result are rounded to float16, the sum is float32's; of so few bits it is exact.

    So are the constants of what is computed with it.
    """
    draw = np.random.RandomState(0)
    x, weight = draw.randint(-300, 300, (4, 6)) / 7, draw.randint(-8, 9, (6, 6))
    found = run(on_cpu(convert_symbol(dense(DATA), "O1", SHAPES)), {"x": x, "fc_weight": weight})[0]
    operand = x.astype(np.float32).astype(np.float16).astype(np.float64)
    np.testing.assert_array_equal(found, (operand @ weight.T).astype(np.float16).astype(np.float32))
    assert not np.array_equal(found, x.astype(np.float32) @ weight.T.astype(np.float32))
    scaled = convert_symbol(dense(DATA) * 0.1, "O1,op:_mul_scalar=float16", SHAPES)
    expected = (operand @ weight.T).astype(np.float16) * np.float16(0.1)
    np.testing.assert_array_equal(run(on_cpu(scaled), {"x": x, "fc_weight": weight})[0], expected.astype(np.float32))


@pytest.mark.behaviour(21)
@pytest.mark.parametrize(("no_bias", "options"), [(False, {"fix_gamma": False}), (True, {}), (False, {"eps": 0.1})])
def test_for_inference_batch_norm_is_folded_and_dropout_gone(no_bias, options):
    conv = mx.sym.Convolution(DATA, kernel=(3, 3), num_filter=4, no_bias=no_bias, name="conv")
    norm = mx.sym.BatchNorm(conv, name="bn", **options)
    symbol = mx.sym.relu(mx.sym.Dropout(norm, name="drop"), name="act")
    shapes = {"x": (2, 3, 8, 8)}
    args, aux = params_of(symbol, shapes)
    aux = {"bn_moving_mean": mx.nd.array([0.5, -1, 2, 0]), "bn_moving_var": mx.nd.array([0.25, 1, 4, 0.5])}
    found = convert_model(symbol, args, aux, "O0", shapes, for_inference=True)
    assert [node["op"] for node in nodes_of(found.symbol) if node["op"] != "null"] == ["Convolution", "relu"]
    x = np.random.RandomState(0).rand(*shapes["x"])
    result = run(found.symbol, {**found.arg_params, **found.aux_params, "x": x})[0]
    np.testing.assert_allclose(result, run(symbol, {**args, **aux, "x": x})[0], rtol=1e-5, atol=1e-5)


# Conversions.


@pytest.mark.behaviour(23)
@pytest.mark.parametrize("policy", ["O1", "O2", "mixed_bfloat16"])
def test_converting_twice_is_converting_once(policy):
    once = model(perceptron(), policy)
    for twice in (convert_model(*once, policy, SHAPES), convert_model(*model(perceptron(), "O3"), policy, SHAPES)):
        assert text(twice.symbol) == text(once.symbol) != text(perceptron())
        assert dtypes_of(twice.arg_params) == dtypes_of(once.arg_params) and precisions(twice) == precisions(once)


@pytest.mark.behaviour(24)
@pytest.mark.parametrize("policy", ["O1", "O2", "mixed_bfloat16"])
def test_converting_to_float32_gives_the_network_back(policy):
    loop, shapes = recurrent()
    symbol = mx.sym.Group([loop, dense(loop[1], "last")])
    found = convert_symbol(symbol, policy, shapes)
    assert text(found) != text(symbol) and text(convert_symbol(found, "O0")) == text(symbol)


@pytest.mark.behaviour(25)
def test_the_callers_symbol_and_arrays_stay_as_they_were():
    symbol, shapes = convolutional()
    args, aux = params_of(symbol, shapes)
    args["conv_weight"][0] = 1e5  # which is clamped
    before = text(symbol), snapshot(args, aux)
    found = convert_model(symbol, args, aux, "O2", shapes)
    assert (text(symbol), snapshot(args, aux)) == before and found.arg_params["conv_weight"].dtype == np.float16
    before = text(found.symbol), snapshot(found.arg_params, found.aux_params)  # a converted one is no exception
    assert convert_model(*found, "O0", shapes).arg_params["conv_weight"].dtype == np.float32
    assert (text(found.symbol), snapshot(found.arg_params, found.aux_params)) == before


@pytest.mark.behaviour(26)
def test_a_weight_that_float32_reads_too_stays_float32():
    weight = mx.sym.var("weight")
    symbol = mx.sym.Group([dense(DATA, weight=weight), mx.sym.exp(weight, name="exp")])
    found = model(symbol, "O2")
    assert dtypes_of(found.arg_params) == {"weight": "float32"} and casts_of(found.symbol).count("weight") == 1


@pytest.mark.behaviour(27)
def test_a_value_beyond_float16_is_clamped_and_listed():
    args = {"fc_weight": mx.nd.array(np.diag([1e5, -1e5, 1, 1, 1, 1]))}
    found = convert_model(dense(DATA), args, {}, "O2", SHAPES)
    assert found.arg_params["fc_weight"].asnumpy().diagonal()[:3].tolist() == [65504, -65504, 1]
    assert [(change.name, change.clamped) for change in found.changes] == [("fc_weight", 2)]


@pytest.mark.behaviour(28)
def test_a_weight_is_rounded_to_the_nearest_bfloat16_and_ties_to_even():
    """`Cast` of MXNet 1.9.1 would truncate."""
    values = np.float32([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-9, 1 + 3 * 2.0**-9, 1 + 2.0**-8 + 2.0**-20, -1.0])
    args = {"fc_weight": mx.nd.array(np.tile(values, (6, 1)))}
    (found,) = convert_model(dense(DATA), args, {}, "O2,param=bfloat16,compute=bfloat16", SHAPES).arg_params.values()
    assert found.dtype == BFLOAT16
    expected = [1, 1 + 2.0**-6, 1, 1 + 2.0**-7, 1 + 2.0**-7, -1]
    bits = found.asnumpy().view(np.uint16).astype(np.uint32) << 16
    assert bits.view(np.float32)[0].tolist() == expected


@pytest.mark.behaviour(29)
def test_a_converted_checkpoint_is_one_of_plain_mxnet(tmp_path):
    """With its auxiliary states, and all of its casts, which MXNet's own way to save leaves out."""
    (network, shapes), prefix, out = convolutional(), str(tmp_path / "net"), str(tmp_path / "low")
    params, x = params_of(network, shapes), mx.nd.ones(shapes["x"])
    mx.model.save_checkpoint(prefix, 3, network, *params)
    convert_checkpoint(prefix, 3, out, "O2", shapes)
    symbol, args, aux = mx.model.load_checkpoint(out, 3)
    module = mx.mod.Module(on_cpu(symbol), ["x"], None)
    module.bind([*shapes.items()], for_training=False)
    module.set_params(args, aux)
    assert dtypes_of(args)["fc_weight"] == "float16"
    assert symbol.infer_type(x="float32", **dtypes_of(args))[1] == [np.float32]
    module.forward(mx.io.DataBatch([x]))
    expected = run(network, {**params[0], **params[1], "x": x})[0]
    np.testing.assert_allclose(module.get_outputs()[0].asnumpy(), expected, atol=2.0**-9)


@pytest.mark.behaviour(30)
def test_casts_of_bfloat16_are_saved_too(tmp_path):
    """`Symbol.save` leaves out every amp_cast."""
    found = model(perceptron(), "mixed_bfloat16")
    save_checkpoint(str(tmp_path / "low"), 0, *found)
    assert text(load_checkpoint(str(tmp_path / "low"), 0).symbol) == text(found.symbol)
    assert any(node["op"] == "amp_cast" for node in nodes_of(found.symbol))


# Files.


@pytest.mark.behaviour(31)
@pytest.mark.parametrize("missing", [1, 4000])
def test_a_full_disk_leaves_the_earlier_files_whole(missing, tmp_path):
    prefix, symbol = str(tmp_path / "net"), dense(DATA, hidden=400)
    save_checkpoint(prefix, 0, symbol, *params_of(symbol, SHAPES))
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    limit = files_of_at_most(len(before["net-0000.params"]) - missing)
    with pytest.raises(CheckpointError, match="cannot be written"), limit:
        save_checkpoint(prefix, 0, mx.sym.relu(symbol), {"fc_weight": mx.nd.zeros((400, 6))}, {})
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    assert set(before) >= {"net-symbol.json", "net-0000.params"}


@pytest.mark.behaviour(32)
@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1], lambda content: content[:50], lambda content: content * 2]
)
def test_a_file_of_parameters_of_another_length_than_it_says_is_refused_by_its_name(damage, tmp_path):
    file = tmp_path / "net-0000.params"
    mx.nd.save(str(file), {"arg:fc_weight": mx.nd.ones((6, 6))})
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=str(file)):
        load_params(str(file))


# ONNX.


@pytest.mark.behaviour(34)
def test_a_converted_model_computes_in_onnxruntime_what_it_does_in_mxnet(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    symbol, shapes = convolutional()
    found = model(symbol, "O2", shapes)
    file = str(tmp_path / "net.onnx")
    mxmp.onnx.export_model(*found, file, shapes)
    x = np.random.RandomState(0).rand(*shapes["x"]).astype(np.float32)
    expected = run(on_cpu(found.symbol), {**found.arg_params, **found.aux_params, "x": x})[0]
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {session.get_inputs()[0].name: x})[0], expected, atol=2.0**-10)
