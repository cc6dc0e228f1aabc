"""Converted models through MXNet's exporter to ONNX, onnx's checker and onnxruntime."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import onnx
import onnxruntime
import pytest
from mxnet.contrib import amp
from onnx import TensorProto

import mxmp.onnx as exporting
import symbols
from mxmp import Policy, compat
from mxmp.compat.old_onnx import IR_VERSION, OPSET
from mxmp.errors import ConvertError
from mxmp.onnx import export_model, exportable
from mxmp.symbol import convert_graph, convert_model, convert_symbol, to_graph
from tests.graph.text import to_text

EPS = 2**-10  # of float16
STEPS = 6


def load_checked(file):
    """Return an exported model, checked with the inference of its dtypes."""
    model = onnx.load(file)
    onnx.checker.check_model(model, full_check=True)
    return model


def export(symbol, params, shapes, folder, dtypes=None):
    """Return what MXNet's exporter alone makes of a symbol."""
    inputs = [name for name in symbol.list_inputs() if name in shapes]
    types = [np.dtype((dtypes or {}).get(name, "float32")) for name in inputs]
    return load_checked(
        mx.onnx.export_model(symbol, params, [shapes[n] for n in inputs], types, str(folder / "raw.onnx"))
    )


def run(model, values):
    """Return the first output of a model on CPU."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, values)[0]


def run_mxnet(symbol, values):
    return mx.nd.CachedOp(symbol)(*[mx.nd.array(values[n], dtype=values[n].dtype) for n in symbol.list_inputs()])


def draw(symbol, shapes):
    """Return parameters under which signals neither die nor explode: arguments and auxiliary states."""
    rng = np.random.RandomState(0)
    args, _, aux = symbol.infer_shape(**shapes)
    found = {}
    for name, shape in zip([*symbol.list_arguments(), *symbol.list_auxiliary_states()], [*args, *aux]):
        values = rng.randn(*shape) / np.sqrt(np.prod(shape[1:]) or 1)
        found[name] = mx.nd.array(rng.uniform(0.5, 1.5, shape) if name.endswith(("gamma", "var")) else values)
    aux_params = {name: found.pop(name) for name in symbol.list_auxiliary_states()}
    return {name: a for name, a in found.items() if name not in shapes and not name.endswith("label")}, aux_params


def perceptron():
    return symbols.get_symbol("mlp"), {"data": np.random.RandomState(1).rand(2, 1, 28, 28)}


def resnet():
    symbol = symbols.get_symbol("cifar_resnet", num_layers=8, version="v2")
    return symbol, {"data": np.random.RandomState(1).rand(2, 3, 32, 32)}


def transformer():
    symbol = symbols.get_symbol(
        "transformer", 3, vocab_size=50, num_layers=2, num_hidden=32, num_heads=4, max_length=STEPS,
        attention="interleaved",
    )  # fmt: skip
    tokens = np.random.RandomState(1).randint(0, 50, (2, STEPS))
    return symbol, {"data": tokens, "token_types": tokens % 2, "valid_length": np.array([STEPS, 4])}


@pytest.mark.parametrize("policy", ["O1", "O2", "O3", "float16"])
@pytest.mark.parametrize("network", [perceptron, resnet, transformer], ids=lambda network: network.__name__)
def test_converted_models_compute_in_onnxruntime_what_they_do_in_mxnet(network, policy, tmp_path):
    """onnxruntime has few float16 kernels on CPU: it rounds weights and inputs, but keeps much between them in float32.

    So it differs from MXNet by the roundings of some ten layers, half an eps each, which add up as
    a random walk does: two eps of the largest output. What is wrongly translated differs by a hundred.
    """
    symbol, values = network()
    values = {name: value.astype(np.float32) for name, value in values.items()}
    shapes = {name: value.shape for name, value in values.items()}
    args, aux = draw(symbol, shapes)
    model = convert_model(symbol, args, aux, policy, shapes)
    exported = load_checked(export_model(*model, str(tmp_path / "net.onnx"), shapes))

    params = {**model.arg_params, **model.aux_params}
    known = {**{name: array.shape for name, array in params.items()}, **shapes}
    same = convert_graph(symbol, Policy.parse(policy), known, {}, frozenset(args), final=True)
    assert same.symbol.tojson() == model.symbol.tojson()
    labels = {name: np.zeros(2, np.float32) for name in symbol.list_arguments() if name.endswith("label")}
    arrays = {name: array.asnumpy() for name, array in params.items()}
    expected = run_mxnet(same.on_cpu(), {**arrays, **labels, **values}).asnumpy()
    result = run(exported, values)
    assert result.dtype == expected.dtype and result.shape == expected.shape
    assert np.abs(result - expected).max() <= 4 * EPS * np.abs(expected).max()


@pytest.mark.parametrize("policy, dtype", [("O1", TensorProto.FLOAT), ("O2", TensorProto.FLOAT16)])
def test_exported_weights_have_the_dtype_that_the_policy_stores(policy, dtype, tmp_path):
    symbol, values = resnet()
    shapes = {"data": values["data"].shape}
    model = convert_model(symbol, *draw(symbol, shapes), policy, shapes)
    exported = load_checked(export_model(*model, str(tmp_path / "net.onnx"), shapes))
    found = {tensor.name: tensor.data_type for tensor in exported.graph.initializer}
    assert found["conv0_weight"] == found["fc_bias"] == dtype
    assert (
        found["stage1_unit1_bn1_gamma" if "stage1_unit1_bn1_gamma" in found else "data_bn_gamma"] == TensorProto.FLOAT
    )
    types = {
        info.name: info.type.tensor_type.elem_type
        for info in onnx.shape_inference.infer_shapes(exported).graph.value_info
    }
    convolutions = [node for node in exported.graph.node if node.op_type == "Conv"]
    assert len(convolutions) == 9 and {types[node.output[0]] for node in convolutions} == {TensorProto.FLOAT16}


def var(name, dtype):
    return mx.sym.var(name, dtype=dtype)


MISREAD = {
    "plus": (lambda t: var("x", t) + 1.5, [(2, 3)]),
    "minus": (lambda t: var("x", t) - 1.5, [(2, 3)]),
    "minus_from": (lambda t: 1.5 - var("x", t), [(2, 3)]),
    "times": (lambda t: var("x", t) * 1.5, [(2, 3)]),
    "over": (lambda t: var("x", t) / 1.5, [(2, 3)]),
    "over_from": (lambda t: 1.5 / var("x", t), [(2, 3)]),
    "power": (lambda t: var("x", t) ** 2, [(2, 3)]),
    "maximum": (lambda t: mx.sym.maximum(var("x", t), 0.5), [(2, 3)]),
    "minimum": (lambda t: mx.sym.minimum(var("x", t), 0.5), [(2, 3)]),
    "greater": (lambda t: var("x", t) > 0.5, [(2, 3)]),
    "lesser": (lambda t: var("x", t) < 0.5, [(2, 3)]),
    "equal": (lambda t: mx.sym.ceil(var("x", t)) == 1, [(2, 3)]),
    "clip": (lambda t: mx.sym.clip(var("x", t), 0.25, 0.75), [(2, 3)]),
    "pad": (
        lambda t: mx.sym.Pad(var("x", t), mode="constant", constant_value=1.5, pad_width=(0, 0, 0, 0, 1, 1, 1, 1)),
        [(1, 2, 2, 2)],
    ),
    "softmax_temperature": (lambda t: mx.sym.softmax(var("x", t), temperature=0.1), [(2, 3)]),
    "softmax_length": (lambda t: mx.sym.softmax(var("x", t), var("n", "int32"), use_length=True), [(3, 4), (3,)]),
    "softmax_output_axis": (
        lambda t: mx.sym.SoftmaxOutput(var("x", t), var("l", t), multi_output=True, name="soft"),
        [(2, 3, 2), (2, 2)],
    ),
    "log2": (lambda t: mx.sym.log2(var("x", t)), [(2, 3)]),
    "gemm2": (lambda t: mx.sym.linalg.gemm2(var("x", t), var("y", t), alpha=0.5), [(2, 3), (3, 2)]),
    "div_sqrt_dim": (lambda t: mx.sym.contrib.div_sqrt_dim(var("x", t)), [(2, 3)]),
    "arange_like": (lambda t: mx.sym.contrib.arange_like(var("x", t), start=2.0, axis=1), [(2, 3)]),
    "one_hot": (lambda t: mx.sym.one_hot(var("n", "int32"), depth=4, on_value=2, off_value=0.5, dtype=t), [(3,)]),
    "arange": (lambda t: var("x", t) * mx.sym.arange(1, 4, dtype=t), [(3,)]),
    "layer_norm": (lambda t: mx.sym.LayerNorm(var("x", t), var("g", t), var("b", t)), [(2, 3), (3,), (3,)]),
    "gelu": (lambda t: mx.sym.LeakyReLU(var("x", t), act_type="gelu"), [(2, 3)]),
    "sequence_mask": (
        lambda t: mx.sym.SequenceMask(var("x", t), var("n", "float32"), use_sequence_length=True, value=-5.0),
        [(4, 2), (2,)],
    ),
    "attention_scores": (lambda t: mx.sym.contrib.interleaved_matmul_selfatt_qk(var("x", t), heads=2), [(3, 2, 24)]),
}
"""Operators that the exporter gets wrong in float16, and right in float32."""


def arguments(symbol, shapes):
    """Return values of a case's inputs that float16 holds, and their dtypes as declared."""
    rng = np.random.RandomState(3)
    flags = {"0": "float32", "2": "float16", "4": "int32"}
    declared = {name: flags[attrs["__dtype__"]] for name, attrs in symbol.attr_dict().items() if "__dtype__" in attrs}
    values = {}
    for name, shape in zip(symbol.list_inputs(), shapes):
        values[name] = np.float16(rng.uniform(0.1, 1, shape)) if name != "n" else 1 + np.arange(shape[0])
    return {name: value.astype(declared[name]) for name, value in values.items()}, declared


def exported(symbol, values, declared, folder):
    """Return what onnxruntime computes of what mxmp exports."""
    shapes = {name: value.shape for name, value in values.items()}
    aux = {name: mx.nd.array(values[name]) for name in symbol.list_auxiliary_states()}
    file = export_model(symbol, {}, aux, str(folder / "net.onnx"), shapes, declared)
    return run(load_checked(file), {name: values[name] for name in exportable(symbol).list_inputs() if name not in aux})


def exported_raw(symbol, values, declared, folder):
    """Return what onnxruntime computes of what MXNet's exporter alone makes, or the error on the way there."""
    shapes = {name: value.shape for name, value in values.items()}
    try:
        model = export(symbol, {}, shapes, folder, declared)
        exporting._tidy(model.graph, onnx.numpy_helper)  # a crash of onnxruntime could not be caught
        return run(model, values)
    except Exception as e:  # the exporter, the checker and onnxruntime raise all sorts
        return e


@pytest.fixture
def opset15(monkeypatch):
    """onnx as of opset 15, so that what the exporter makes alone fails for its own faults."""
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: OPSET)
    monkeypatch.setattr(onnx.checker.DEFAULT_CONTEXT, "opset_imports", {"": OPSET})


@pytest.mark.parametrize("case", MISREAD)
def test_operators_in_float16_are_exported_as_mxnet_computes_them(case, opset15, tmp_path):
    build, shapes = MISREAD[case]
    symbol = build("float16")
    values, declared = arguments(symbol, shapes)
    exact = {name: v.astype(np.float32) if v.dtype == np.float16 else v for name, v in values.items()}
    expected = run_mxnet(build("float32"), exact).asnumpy()
    bound = EPS * np.abs(expected).max()

    result = exported(symbol, values, declared, tmp_path)
    assert result.dtype == np.float16 and np.abs(result - expected).max() <= bound
    raw = exported_raw(symbol, values, declared, tmp_path)
    assert isinstance(raw, Exception) or not np.abs(raw - expected).max() <= bound, "the exporter needs no help here"


@pytest.mark.parametrize(
    "build, shapes",
    [
        (lambda t: mx.sym.FullyConnected(var("x", t), var("w", t), no_bias=True, num_hidden=2), [(2, 3, 2), (2, 6)]),
        (lambda t: mx.sym.Deconvolution(var("x", t), var("w", t), kernel=(2, 2), num_filter=3), [(1, 2, 3, 3), (2, 3, 2, 2)]),
        (lambda t: mx.sym.LRN(var("x", t), nsize=3), [(1, 4, 2, 2)]),
        (lambda t: mx.sym.SoftmaxOutput(var("x", t), var("soft_label", t), name="soft"), [(2, 3, 4), (2, 3)]),
        (lambda t: mx.sym.SoftmaxOutput(var("x", t), var("soft_label", t), preserve_shape=True, name="soft"), [(2, 3, 4), (2, 3)]),
        (lambda t: mx.sym.BatchNorm(*(var(n, t) for n in "xgbmv")), [(2, 3, 4), (3,), (3,), (3,), (3,)]),
    ],
    ids=["fully_connected", "deconvolution", "lrn", "softmax_output", "softmax_output_rows", "batch_norm"],
)  # fmt: skip
def test_defaults_and_labels_are_written_out_in_float32_too(build, shapes, tmp_path):
    symbol = build("float32")
    values, declared = arguments(symbol, shapes)
    expected = run_mxnet(symbol, values)
    expected = (expected[0] if isinstance(expected, list) else expected).asnumpy()
    result = exported(symbol, values, declared, tmp_path)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    raw = exported_raw(symbol, values, declared, tmp_path)
    assert isinstance(raw, Exception) or raw.shape != expected.shape or np.abs(raw - expected).max() > 0.01


def test_windows_of_means_beyond_the_data_count_what_is_there(tmp_path):
    symbol = mx.sym.Pooling(var("x", "float32"), kernel=(2, 2), stride=(2, 2), pool_type="avg", pooling_convention="full")
    values, declared = arguments(symbol, [(1, 2, 5, 5)])
    np.testing.assert_allclose(
        exported(symbol, values, declared, tmp_path), run_mxnet(symbol, values).asnumpy(), rtol=1e-5, atol=1e-6
    )
    # The exporter alone has them count padding, where runtimes differ: onnxruntime 1.26 divides by all of a window.
    (raw,) = export(symbol, {}, {"x": (1, 2, 5, 5)}, tmp_path).graph.node
    assert {a.name: a.i for a in raw.attribute}["count_include_pad"] == 1


@pytest.mark.parametrize(
    "head",
    ["SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput", "SVMOutput"],
)
def test_loss_heads_are_exported_without_their_labels(head, tmp_path):
    symbol = getattr(mx.sym, head)(mx.sym.var("x"), name="head")
    values = {"x": np.random.RandomState(0).randn(2, 3).astype(np.float32)}
    labels = np.zeros(2 if head in ("SoftmaxOutput", "SVMOutput") else (2, 3), np.float32)
    expected = run_mxnet(symbol, {**values, "head_label": labels}).asnumpy()
    model = load_checked(export_model(symbol, {}, {}, str(tmp_path / "net.onnx"), {"x": (2, 3)}))
    assert [value.name for value in model.graph.input] == ["x"]
    np.testing.assert_allclose(run(model, values), expected, rtol=1e-5)


def test_an_output_that_is_an_input_is_exported(tmp_path):
    x = mx.sym.var("x")
    model = load_checked(export_model(mx.sym.Group([x, x * 2]), {}, {}, str(tmp_path / "net.onnx"), {"x": (2, 3)}))
    assert len(model.graph.output) == 2


def test_models_say_the_opset_of_their_operators_and_onnx_is_as_before(tmp_path):
    before = onnx.checker.DEFAULT_CONTEXT.opset_imports
    x = mx.sym.var("x")
    file = export_model(mx.sym.mean(x, axis=1), {}, {}, str(tmp_path / "net.onnx"), {"x": (2, 3)})
    model = onnx.load(file)
    assert [opset.version for opset in model.opset_import] == [OPSET] and model.ir_version == IR_VERSION
    assert onnx.checker.DEFAULT_CONTEXT.opset_imports == before
    if onnx.defs.onnx_opset_version() > 17 and not compat.needed():
        with pytest.raises(onnx.checker.ValidationError, match="axes"):
            export(mx.sym.mean(x, axis=1), {}, {"x": (2, 3)}, tmp_path)


def test_parameters_are_no_inputs_and_those_that_nothing_reads_are_gone(tmp_path):
    net = mx.sym.softmax(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2, name="fc"), name="soft")
    params = {"fc_weight": mx.nd.ones((2, 3)), "fc_bias": mx.nd.ones(2), "other": mx.nd.ones(2)}
    model = load_checked(export_model(net, params, {}, str(tmp_path / "net.onnx"), {"x": (2, 3)}))
    assert [value.name for value in model.graph.input] == ["x"]
    assert {tensor.name for tensor in model.graph.initializer} == {"fc_weight", "fc_bias"}


def test_outputs_keep_their_names_and_the_symbol_given_is_left_alone():
    symbol = convert_symbol(symbols.get_symbol("transformer", attention="interleaved"), "O3")
    before = symbol.tojson()
    found = exportable(symbol)
    assert found.list_outputs() == symbol.list_outputs() == ["softmax_output"]
    assert set(symbol.list_inputs()) - set(found.list_inputs()) == {"softmax_label"}
    assert symbol.tojson() == before
    assert exportable(found).tojson() == found.tojson()


def test_what_the_exporter_reads_right_is_left_alone():
    data = mx.sym.var("data", dtype="float16")
    symbol = mx.sym.FullyConnected(mx.sym.relu(data), num_hidden=2, flatten=False) + data
    assert to_text(to_graph(exportable(symbol))) == to_text(to_graph(symbol))


def exported_by_contrib(symbol, folder, **options):
    shapes = {"data": (2, 784)}
    args, aux = draw(symbol, shapes)
    symbol, args, aux = amp.convert_model(symbol, args, aux, target_dtype="float16", **options)
    return export(symbol, {**args, **aux}, shapes, folder)


def classifier(softmax):
    logits = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=10, flatten=True, name="fc")
    return mx.sym.softmax(logits, name="soft") if softmax else logits


def test_contrib_amp_models_that_end_in_float16_are_not_exported(tmp_path):
    with pytest.raises(AttributeError, match="No conversion function registered for op type amp_cast"):
        exported_by_contrib(classifier(softmax=False), tmp_path)


def test_contrib_amp_models_with_float32_weights_are_exported_without_float16(tmp_path):
    model = exported_by_contrib(classifier(softmax=True), tmp_path)
    assert "Cast" not in {node.op_type for node in model.graph.node}
    assert TensorProto.FLOAT16 not in {tensor.data_type for tensor in model.graph.initializer}


def test_contrib_amp_models_with_float16_weights_are_exported_with_wrong_dtypes(tmp_path):
    with pytest.raises(onnx.shape_inference.InferenceError, match="inconsistent type tensor"):
        exported_by_contrib(classifier(softmax=True), tmp_path, cast_optional_params=True)


@pytest.mark.parametrize("policy", ["O0", "O2"])
def test_a_model_for_inference(policy, tmp_path):
    data = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, no_bias=True, name="conv")
    data = mx.sym.Activation(mx.sym.BatchNorm(data, name="bn"), act_type="relu", name="act")
    symbol = mx.sym.Dropout(mx.sym.FullyConnected(data, num_hidden=3, name="fc"), name="drop")
    shapes = {"data": (2, 3, 6, 6)}
    args, aux = draw(symbol, shapes)
    model = convert_model(symbol, args, aux, policy, shapes, for_inference=True)
    file = export_model(*model, str(tmp_path / "net.onnx"), shapes=shapes)
    exported = load_checked(file)
    assert not {"BatchNormalization", "Dropout"} & {node.op_type for node in exported.graph.node}
    values = {"data": np.random.RandomState(0).randn(2, 3, 6, 6).astype("float32")}
    expected = run_mxnet(symbol, {**values, **{name: array.asnumpy() for name, array in {**args, **aux}.items()}}).asnumpy()
    tolerance = 8 * (EPS if policy == "O2" else np.finfo(np.float32).eps)
    np.testing.assert_allclose(run(exported, values), expected, atol=tolerance * np.abs(expected).max())


def test_a_name_that_the_exporter_cannot_read_is_refused(tmp_path):
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="a\x01b")
    params = {"a\x01b_weight": mx.nd.ones((2, 3)), "a\x01b_bias": mx.nd.zeros(2)}
    with pytest.raises(ConvertError, match="reads no control characters; rename it"):
        export_model(symbol, params, {}, str(tmp_path / "net.onnx"), {"data": (2, 3)})
    assert list(tmp_path.iterdir()) == []
