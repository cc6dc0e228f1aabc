"""What a converted net exports runs in plain MXNet, in the precision that it was converted to."""

import pytest

from tests.gpu_record.runs import Run

pytestmark = pytest.mark.xdist_group("export")
MODES = ("O1", "O2")


@pytest.fixture(params=MODES)
def imported(request, recorder):
    """The record of a run in plain MXNet."""
    written = recorder.record(Run("exported", (request.param, str(recorder.folder))))
    symbol, params = written.facts["files"]
    return recorder.record(Run("imported", (symbol, params)))


def test_plain_mxnet_runs_it(imported):
    assert imported.facts["shapes"] == [[8, 10], [8, 10]]
    assert imported.facts["dtypes"] == ["float32", "float32"]
    assert not {"mxmp.gluon", "mxmp.symbol", "mxmp.passes"} & set(imported.facts["loaded"])


@pytest.mark.parametrize("section", ["block", "symbol"])
def test_its_products_run_on_tensor_cores_with_float32_sums(imported, section):
    found = imported[section]
    products = {(p.dtype, p.compute, p.math) for p in (*found.convolutions, *found.matrix_products)}
    assert products == {("float16", "float32", "tensor_op")}
    assert len(found.convolutions) == 1 and len(found.matrix_products) == 1


@pytest.mark.parametrize("section", ["block", "symbol"])
def test_its_batch_norm_has_float32_parameters(imported, section):
    assert {norm.parameters for norm in imported[section].norms} == {"float32"}
