"""onnx as MXNet's exporter and importer see it, with onnx 1.13 and with later ones."""


import mxnet as mx
import numpy as np
import onnx
import onnx.numpy_helper  # onnx 1.13 does not import it by itself
import pytest
from onnx import TensorProto, helper

from mxmp.compat import finder, old_modules, old_onnx

DTYPES = "float16 float32 float64 uint8 int8 int32 int64".split()  # of NDArrays


@pytest.fixture
def view():
    return old_modules.view(onnx, old_onnx.names(onnx))


def one_node(op, shape=(2, 3), **attributes):
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in [("x", (2, 3)), ("y", shape)]
    )
    return helper.make_graph([helper.make_node(op, ["x"], ["y"], **attributes)], op, [x], [y])


MEAN = one_node("ReduceMean", (2, 1), axes=[1])  # as operators of version 13 say it, and those of version 18 do not


def test_types_have_the_dtypes_of_onnx_1_13_and_dtypes_the_types(view):
    """Its own table, or what took its place, which knows bfloat16."""
    codes = range(TensorProto.FLOAT, TensorProto.BFLOAT16 + 1)
    dtypes = onnx.mapping.TENSOR_TYPE_TO_NP_TYPE.get if hasattr(onnx, "mapping") else helper.tensor_dtype_to_np_dtype
    expected = {**{code: dtypes(code) for code in codes}, TensorProto.BFLOAT16: np.dtype("float32")}
    assert view.mapping.TENSOR_TYPE_TO_NP_TYPE == expected
    assert all(type(code) is int for code in view.mapping.TENSOR_TYPE_TO_NP_TYPE)
    del expected[TensorProto.BFLOAT16]
    assert view.mapping.NP_TYPE_TO_TENSOR_TYPE == {dtype: code for code, dtype in expected.items()}


def test_models_are_made_in_the_version_of_the_operators_that_the_exporter_writes(view):
    model = view.helper.make_model(MEAN)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", old_onnx.OPSET)]
    assert model.ir_version == old_onnx.IR_VERSION == helper.find_min_ir_version_for(model.opset_import)
    assert view.defs.onnx_opset_version() == old_onnx.OPSET
    onnx.checker.check_model(model)


def test_graphs_are_checked_as_of_that_version_and_onnx_is_as_before(view):
    before = onnx.checker.DEFAULT_CONTEXT.opset_imports
    view.checker.check_graph(MEAN)
    with pytest.raises(onnx.checker.ValidationError, match="axes"):
        onnx.checker.check_graph(MEAN)
    with pytest.raises(onnx.checker.ValidationError, match="nonsense"):
        view.checker.check_graph(one_node("Relu", nonsense=1))
    assert onnx.checker.DEFAULT_CONTEXT.opset_imports == before
    assert onnx.defs.onnx_opset_version() > old_onnx.OPSET


def imported(name, *fromlist):
    return finder._import(name, fromlist=fromlist)


@pytest.mark.parametrize("part", ["mapping", "helper", "checker", "defs"])
def test_parts_are_the_same_however_they_are_imported(part):
    assert imported(f"onnx.{part}", "x") is getattr(imported("onnx"), part) is getattr(imported("onnx", part), part)


def export(symbol, params, shapes, dtypes, folder):
    return onnx.load(mx.onnx.export_model(symbol, params, shapes, dtypes, str(folder / "net.onnx")))


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_and_parameters_are_exported_in_their_dtypes(dtype, tmp_path):
    x, y = mx.sym.var("x"), mx.sym.var("y", dtype=dtype)
    values = mx.nd.array([[1, 2, 3]], dtype=dtype)
    graph = export(mx.sym.elemwise_add(x, y), {"y": values}, [(1, 3)], [np.dtype(dtype)], tmp_path).graph
    code = getattr(TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper()))
    assert {value.type.tensor_type.elem_type for value in [*graph.input, *graph.output]} == {code}
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(graph.initializer[0]), values.asnumpy())
    assert graph.initializer[0].data_type == code


@pytest.mark.parametrize("dtype, code", [("float16", TensorProto.FLOAT16), ("int32", TensorProto.INT32)])
def test_casts_are_imported(dtype, code, tmp_path):
    onnx.save(helper.make_model(one_node("Cast", to=int(code))), str(tmp_path / "cast.onnx"))
    symbol, args, aux = mx.contrib.onnx.import_model(str(tmp_path / "cast.onnx"))
    x = np.array([[0.1, 1.5, -2.5]], np.float32)
    result = mx.nd.CachedOp(symbol)(mx.nd.array(x)).asnumpy()
    assert result.dtype == dtype and not args and not aux
    np.testing.assert_array_equal(result, x.astype(dtype))
