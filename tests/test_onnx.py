"""Converted models through MXNet's exporter to ONNX, onnx's checker and onnxruntime."""


import mxnet as mx
import numpy as np
import onnx
import onnxruntime
import pytest
from mxnet.gluon.model_zoo import vision
from onnx import TensorProto

import symbols
from mxmp.onnx import export_model, exportable
from mxmp.symbol import convert_model, convert_symbol, on_cpu, to_graph
from tests.graph.text import to_text

EPS = 2**-10  # of float16


def exported(model, shapes, folder, dtypes=None):
    """Return what mxmp exports of a symbol and its parameters, checked with the inference of its dtypes."""
    found = onnx.load(export_model(*model, str(folder / "net.onnx"), shapes, dtypes))
    onnx.checker.check_model(found, full_check=True)
    return found


def run(model, values):
    """Return the outputs of a model on CPU, of those values that are its inputs."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {each.name: values[each.name] for each in session.get_inputs()})


def run_mxnet(symbol, values):
    """Return the outputs of a symbol."""
    outputs = mx.nd.CachedOp(symbol)(*[mx.nd.array(values[n], dtype=values[n].dtype) for n in symbol.list_inputs()])
    return [output.asnumpy() for output in (outputs if isinstance(outputs, list) else [outputs])]


def shapes_of(values):
    return {name: value.shape for name, value in values.items()}


def draw(symbol, shapes):
    """Return parameters under which signals neither die nor explode: arguments and auxiliary states."""
    rng, (args, _, aux) = np.random.RandomState(0), symbol.infer_shape(**shapes)
    sizes = zip([*symbol.list_arguments(), *symbol.list_auxiliary_states()], [*args, *aux])
    drawn = {name: rng.randn(*size) / np.sqrt(np.prod(size[1:]) or 1) for name, size in sizes if name not in shapes}
    positive = {name: 0.5 + rng.rand(*value.shape) for name, value in drawn.items() if name.endswith(("gamma", "var"))}
    found = {name: mx.nd.array(value) for name, value in {**drawn, **positive}.items() if not name.endswith("label")}
    aux_params = {name: found.pop(name) for name in symbol.list_auxiliary_states()}
    return found, aux_params


RNG = np.random.RandomState(1)
TOKENS = RNG.randint(0, 50, (2, 6))
TRANSFORMER = dict(vocab_size=50, num_layers=2, num_hidden=32, num_heads=4, max_length=6, attention="interleaved")
NETWORKS = {
    "resnet": (symbols.get_symbol("cifar_resnet", num_layers=8, version="v2"), {"data": RNG.rand(2, 3, 32, 32)}),
    "transformer": (
        symbols.get_symbol("transformer", 3, **TRANSFORMER),
        {"data": TOKENS, "token_types": TOKENS % 2, "valid_length": np.array([6, 4])},
    ),
}


@pytest.mark.parametrize("policy", ["O1", "O2", "O3", "float16"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.slow
def test_converted_models_compute_in_onnxruntime_what_they_do_in_mxnet(network, policy, tmp_path):
    """onnxruntime has few float16 kernels on CPU: it rounds weights and inputs, but keeps much between them in float32.

    So it differs from MXNet by the roundings of some ten layers, half an eps each, which add up as
    a random walk does: two eps of the largest output. What is wrongly translated differs by a hundred.
    """
    symbol, values = NETWORKS[network]
    values, shapes = {name: value.astype(np.float32) for name, value in values.items()}, shapes_of(values)
    model = convert_model(symbol, *draw(symbol, shapes), policy, shapes)
    (result,) = run(exported(model, shapes, tmp_path), values)
    labels = {name: np.zeros(2, np.float32) for name in symbol.list_arguments() if name.endswith("label")}
    params = {name: array.asnumpy() for name, array in {**model.arg_params, **model.aux_params}.items()}
    (expected,) = run_mxnet(on_cpu(model.symbol), {**params, **labels, **values})
    assert result.dtype == expected.dtype and result.shape == expected.shape
    assert np.abs(result - expected).max() <= 4 * EPS * np.abs(expected).max()


@pytest.mark.parametrize("policy, dtype", [("O1", TensorProto.FLOAT), ("O2", TensorProto.FLOAT16)])
def test_exported_weights_have_the_dtype_that_the_policy_stores(policy, dtype, tmp_path):
    symbol, values = NETWORKS["resnet"]
    shapes = shapes_of(values)
    model = exported(convert_model(symbol, *draw(symbol, shapes), policy, shapes), shapes, tmp_path)
    found = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert found["conv0_weight"] == found["fc_bias"] == dtype and found["data_bn_gamma"] == TensorProto.FLOAT
    infos = onnx.shape_inference.infer_shapes(model).graph.value_info
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    assert [types[node.output[0]] for node in model.graph.node if node.op_type == "Conv"] == [TensorProto.FLOAT16] * 9


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

DEFAULTS = {
    "fully_connected": (lambda t: mx.sym.FullyConnected(var("x", t), var("w", t), no_bias=True, num_hidden=2), [(2, 3, 2), (2, 6)]),
    "deconvolution": (lambda t: mx.sym.Deconvolution(var("x", t), var("w", t), kernel=(2, 2), num_filter=3), [(1, 2, 3, 3), (2, 3, 2, 2)]),
    "lrn": (lambda t: mx.sym.LRN(var("x", t), nsize=3), [(1, 4, 2, 2)]),
    "softmax_output": (lambda t: mx.sym.SoftmaxOutput(var("x", t), var("soft_label", t), name="soft"), [(2, 3, 4), (2, 3)]),
    "softmax_output_rows": (
        lambda t: mx.sym.SoftmaxOutput(var("x", t), var("soft_label", t), preserve_shape=True, name="soft"),
        [(2, 3, 4), (2, 3)],
    ),
    "batch_norm": (lambda t: mx.sym.BatchNorm(*(var(n, t) for n in "xgbmv")), [(2, 3, 4), (3,), (3,), (3,), (3,)]),
    "batch_norm_true": (
        lambda t: mx.sym.BatchNorm(*(var(n, t) for n in "xgbmv"), fix_gamma="true"), [(2, 3, 4), (3,), (3,), (3,), (3,)],
    ),
    "softmax_output_true": (
        lambda t: mx.sym.SoftmaxOutput(var("x", t), var("soft_label", t), multi_output="true", name="soft"),
        [(2, 3, 4), (2, 4)],
    ),
    "pooling": (  # of which the exporter has onnxruntime divide by all of a window
        lambda t: mx.sym.Pooling(var("x", t), kernel=(2, 2), stride=(2, 2), pool_type="avg", pooling_convention="full"),
        [(1, 2, 5, 5)],
    ),
    **{
        head: (lambda t, head=head: getattr(mx.sym, head)(var("x", t), var("l", t), name="head"), [(2, 3), shape])
        for head, shape in {
            "LinearRegressionOutput": (2, 3),
            "LogisticRegressionOutput": (2, 3),
            "MAERegressionOutput": (2, 3),
            "SVMOutput": (2,),
        }.items()
    },
}
"""Those whose defaults or labels it gets wrong in float32 too."""


def arguments(symbol, shapes):
    """Return values of a case's inputs that float16 holds, and their dtypes as declared."""
    rng = np.random.RandomState(3)
    flags = {"0": "float32", "2": "float16", "4": "int32"}
    declared = {name: flags[attrs["__dtype__"]] for name, attrs in symbol.attr_dict().items() if "__dtype__" in attrs}
    values = {}
    for name, shape in zip(symbol.list_inputs(), shapes):
        value = np.float16(rng.uniform(0.1, 1, shape)) if name != "n" else 1 + np.arange(shape[0])
        values[name] = value.astype(declared[name])
    return values, declared


CASES = [*(("float16", *case) for case in MISREAD.values()), *(("float32", *case) for case in DEFAULTS.values())]


@pytest.mark.parametrize("dtype, build, shapes", CASES, ids=[*MISREAD, *DEFAULTS])
def test_operators_are_exported_as_mxnet_computes_them(dtype, build, shapes, tmp_path):
    symbol, exact = build(dtype), build("float32")
    values, declared = arguments(symbol, shapes)
    expected, *_ = run_mxnet(exact, arguments(exact, shapes)[0])
    aux = {name: mx.nd.array(values[name]) for name in symbol.list_auxiliary_states()}
    result, *_ = run(exported((symbol, {}, aux), shapes_of(values), tmp_path, declared), values)
    assert result.dtype == dtype and result.shape == expected.shape
    assert np.abs(result - expected).max() <= (EPS if dtype == "float16" else 1e-5) * np.abs(expected).max()


S, IMAGES, ROWS, STEPS = mx.sym, (2, 4, 8, 8), (2, 6), (2, 5, 6)


def words(x):
    return S.Embedding(x, input_dim=9, output_dim=4)


def dense(x, **options):
    return S.FullyConnected(x, num_hidden=3, **options)


def named(prefix, build):
    """Return what is built under a prefix of names, as in a Gluon block."""
    with mx.name.Prefix(prefix):
        return build()


def in_another_order(x):
    first = S.relu(x, name="first")
    return S.Group([S.tanh(first, name="second"), first, *S.split(first, num_outputs=12, axis=1), first])


NETS = {  # what is built of the data, and the data's shape; tokens have two dimensions of integers
    "words, dense": (lambda x: dense(words(x), flatten=False), "tokens"),
    "words, dense without bias": (lambda x: dense(words(x), flatten=False, no_bias=True), "tokens"),
    "words, flat dense without bias": (lambda x: dense(words(x), no_bias=True), "tokens"),
    "words, scalar": (lambda x: words(x) * 0.3 + 1.5, "tokens"),
    "words, LayerNorm": (lambda x: S.LayerNorm(words(x)), "tokens"),
    "words, clip": (lambda x: S.clip(words(x), -0.25, 0.25), "tokens"),
    "words, softmax": (lambda x: S.softmax(words(x), temperature=2.0), "tokens"),
    "take, dense without bias": (
        lambda x: dense(S.take(S.var("w_weight", shape=(9, 4)), x), flatten=False, no_bias=True), "tokens"
    ),
    "one_hot, dense without bias": (lambda x: dense(S.one_hot(x, depth=9), flatten=False, no_bias=True), "tokens"),
    "scaled weights": (lambda x: S.broadcast_mul(x, named("net_", lambda: 1 - S.var("w_weight", shape=(2, 6)))), ROWS),
    "where, dense without bias": (lambda x: dense(S.where(x > 0.1, x, S.zeros_like(x)), no_bias=True), ROWS),
    "argmax, dense without bias": (lambda x: dense(S.argmax(x, axis=1, keepdims=True), no_bias=True), ROWS),
    "dense without bias, of images": (lambda x: dense(x, no_bias=True), IMAGES),
    "dense without bias, of steps": (lambda x: dense(x, no_bias=True, flatten=False), STEPS),
    "dense twice": (lambda x: dense(S.relu(dense(x, flatten=False)), no_bias=True, flatten=False), STEPS),
    "dot": (lambda x: S.dot(x, S.var("w_weight", shape=(3, 6)), transpose_b=True), ROWS),
    "batch_dot": (lambda x: S.batch_dot(x, x, transpose_b=True), STEPS),
    "convolution": (
        lambda x: S.Convolution(x, kernel=(3, 3), num_filter=4, num_group=2, dilate=(2, 2), no_bias=True), IMAGES
    ),
    "convolution of steps": (lambda x: S.Convolution(x, kernel=(3,), num_filter=4), STEPS),
    "deconvolution": (lambda x: S.Deconvolution(x, kernel=(3, 3), num_filter=4, stride=(2, 2), adj=(1, 1)), IMAGES),
    "batch norm": (lambda x: S.BatchNorm(S.Convolution(x, kernel=(1, 1), num_filter=4), fix_gamma=False), IMAGES),
    "instance norm": (lambda x: S.InstanceNorm(x), IMAGES),
    "PReLU": (lambda x: S.LeakyReLU(x, act_type="prelu"), IMAGES),
    "PReLU of steps": (lambda x: S.LeakyReLU(x, act_type="prelu"), STEPS),
    "PReLU of rows": (lambda x: S.LeakyReLU(x, act_type="prelu"), ROWS),
    "pooling": (lambda x: S.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg"), IMAGES),
    "mean": (lambda x: S.broadcast_add(x, S.mean(x, axis=1, keepdims=True)), STEPS),
    "norm": (lambda x: S.norm(x, axis=1), STEPS),
    "pad": (lambda x: S.pad(x, mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 1, 1), constant_value=2), IMAGES),
    "resize": (lambda x: S.contrib.BilinearResize2D(x, height=16, width=16), IMAGES),
    "topk": (lambda x: S.topk(x, k=2, ret_typ="value"), ROWS),
    "outputs in another order": (in_another_order, (2, 12)),
}


ALL_NETS = [(name, dtype) for name in NETS for dtype in ("float32", "int32") if "tokens" in NETS[name] or dtype != "int32"]


@pytest.mark.parametrize("policy", ["O0", "O2"])
@pytest.mark.parametrize("name, dtype", ALL_NETS)
def test_small_nets_load_and_compute_the_same_in_onnxruntime(name, dtype, policy, tmp_path):
    """onnx's checker passes graphs whose dtypes or ranks onnxruntime refuses."""
    build, shape = NETS[name]
    data = TOKENS % 9 if shape == "tokens" else RNG.uniform(-1, 1, shape)
    symbol, values = build(mx.sym.var("data")), {"data": data.astype(dtype)}
    args, aux = draw(symbol, shapes_of(values))
    model = convert_model(symbol, args, aux, policy, shapes_of(values), {"data": dtype})
    found = exported(model, shapes_of(values), tmp_path, {"data": dtype})
    outputs = run_mxnet(symbol, {**values, **{name: array.asnumpy() for name, array in {**args, **aux}.items()}})
    results = run(found, values)
    assert [result.shape for result in results] == [expected.shape for expected in outputs]
    for result, expected in zip(results, outputs):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, expected, atol=(4 * EPS if policy == "O2" else 1e-5) * np.abs(expected).max())


def test_models_say_the_opset_of_their_operators_and_take_what_is_read_alone(tmp_path):
    before, x = onnx.checker.DEFAULT_CONTEXT.opset_imports, mx.sym.var("x")
    symbol = mx.sym.Group([mx.sym.mean(mx.sym.FullyConnected(x, num_hidden=2, name="fc"), axis=1), x])
    params = {"fc_weight": mx.nd.ones((2, 3)), "fc_bias": mx.nd.ones(2), "other": mx.nd.ones(2)}
    model = exported((symbol, params, {}), {"x": (2, 3)}, tmp_path)
    assert [opset.version for opset in model.opset_import] == [15] and model.ir_version == 8
    assert onnx.checker.DEFAULT_CONTEXT.opset_imports == before
    assert [value.name for value in model.graph.input] == ["x"] and len(model.graph.output) == 2
    assert {"fc_weight", "fc_bias"} == {tensor.name for tensor in model.graph.initializer if "mean" not in tensor.name}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int32"])
def test_parameters_are_stored_as_the_bytes_that_they_have(dtype, tmp_path):
    numbers = [0.0, -0.0, 1 / 3, 2.0**-24, np.inf, np.nan] if "float" in dtype else range(6)
    values = np.array(numbers, dtype).reshape(2, 3)
    symbol = mx.sym.elemwise_add(mx.sym.var("x", dtype=dtype), mx.sym.var("w", dtype=dtype))
    model = exported((symbol, {"w": mx.nd.array(values, dtype=dtype)}, {}), {"x": (2, 3)}, tmp_path, {"x": dtype})
    (tensor,) = model.graph.initializer
    assert (tensor.name, tuple(tensor.dims)) == ("w", (2, 3)) and tensor.raw_data == values.tobytes()
    assert onnx.numpy_helper.to_array(tensor).dtype == dtype
    assert [value.name for value in model.graph.input] == ["x"]


def test_outputs_keep_their_names_and_what_the_exporter_reads_right_is_left_alone():
    symbol = convert_symbol(NETWORKS["transformer"][0], "O3")
    before, found = symbol.tojson(), exportable(symbol)
    assert found.list_outputs() == symbol.list_outputs() == ["softmax_output"]
    assert set(symbol.list_inputs()) - set(found.list_inputs()) == {"softmax_label"}
    assert symbol.tojson() == before and exportable(found).tojson() == found.tojson()
    plain = mx.sym.FullyConnected(mx.sym.relu(var("data", "float16")), num_hidden=2, flatten=False) + var("x", "float16")
    assert to_text(to_graph(exportable(plain))) == to_text(to_graph(plain))


def classifier(name, size):
    """Return a classifier whose BatchNorms have the statistics of its images, its parameters, and two images."""
    mx.random.seed(0)
    net = vision.get_model(name, classes=10)
    net.initialize(mx.init.MSRAPrelu("in", slope=0))
    images = mx.nd.random.normal(shape=(8 if size == 64 else 2, 3, size, size))
    with mx.autograd.train_mode():
        net(images)
    for each, param in net.collect_params(".*running_(mean|var)").items():  # of which a tenth is new
        param.set_data(param.data() * 10 if each.endswith("mean") else (param.data() - 0.9) * 10)
    symbol, params = net(mx.sym.var("data")), net.collect_params().values()
    states = symbol.list_auxiliary_states()
    args, aux = ({p.name: p.data() for p in params if (p.name in states) == kind} for kind in (False, True))
    return net, (symbol, args, aux), images[:2]


CLASSIFIERS = {"resnet18_v2": 64, "mobilenetv2_1.0": 64, "squeezenet1.1": 224}


@pytest.mark.slow
@pytest.mark.parametrize("name, size", CLASSIFIERS.items(), ids=CLASSIFIERS)
def test_openvino_computes_what_the_network_does_in_bfloat16_too(name, size, tmp_path):
    """As docs/guides/deploy_cpu.md shows it: folded in float32, exported, in bfloat16 by OpenVINO's hint.

    The networks have 20 to 50 layers, each of which rounds its weights and its output by half an eps at most. They
    add up as a random walk does: some 5 eps of the largest output, with 16 a bound. What is wrongly translated differs
    by as much as the output itself. In float32 sums are made in other orders, thousands of terms each.
    """
    import openvino  # of the tests alone

    net, model, images = classifier(name, size)
    folded = convert_model(*model, "float32", for_inference=True)
    file = export_model(*folded, str(tmp_path / "net.onnx"), {"data": images.shape})
    core, found = openvino.Core(), {}
    hints = ["f32", "bf16"] if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES") else ["f32"]
    for hint in hints:
        compiled = core.compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": hint})
        found[hint] = compiled([images.asnumpy()])[0]
    expected = net(images).asnumpy()
    for hint, result in found.items():
        eps = {"f32": 128 * 2**-23, "bf16": 16 * 2**-7}[hint]
        assert np.abs(result - expected).max() <= eps * np.abs(expected).max()
    assert hints == ["f32"] or (found["f32"] != found["bf16"]).any()  # otherwise the hint did nothing


@pytest.mark.parametrize("policy", ["O0", "O2"])
def test_a_model_for_inference_computes_in_onnxruntime_what_the_network_does(policy, tmp_path):
    data = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, no_bias=True, name="conv")
    data = mx.sym.Activation(mx.sym.BatchNorm(data, name="bn"), act_type="relu", name="act")
    symbol = mx.sym.Dropout(mx.sym.FullyConnected(data, num_hidden=3, name="fc"), name="drop")
    values = {"data": RNG.randn(2, 3, 6, 6).astype("float32")}
    args, aux = draw(symbol, shapes_of(values))
    found = exported(convert_model(symbol, args, aux, policy, shapes_of(values), for_inference=True), shapes_of(values), tmp_path)
    assert not {"BatchNormalization", "Dropout"} & {node.op_type for node in found.graph.node}
    (expected,) = run_mxnet(symbol, {**values, **{name: array.asnumpy() for name, array in {**args, **aux}.items()}})
    (result,) = run(found, values)
    tolerance = 8 * (EPS if policy == "O2" else np.finfo(np.float32).eps)
    np.testing.assert_allclose(result, expected, atol=tolerance * np.abs(expected).max())
