"""Both classification scripts, run small."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest

from examples.image_classification.data import load
from tests.examples.image_classification.files import write_folder, write_idx
from tests.examples.scripts import train

KINDS = ("gluon", "module")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["O0", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_run_leaves_table_plot_history_and_a_network_for_plain_mxnet(kind, policy, tmp_path):
    record, text = train(kind, tmp_path, "--policy", policy)
    assert "epoch loss accuracy test loss test accuracy loss scale ms/step" in text
    assert "symbols/lenet on digits" in text
    assert (tmp_path / "run.png").exists()
    assert len(record["history"]["steps"]["accuracy"]) == 6
    assert [epoch["step"] for epoch in record["history"]["epochs"]] == [3, 6]
    symbol, arg_params, aux_params = mx.model.load_checkpoint(str(tmp_path / "net"), 0)
    assert {array.dtype for array in [*arg_params.values(), *aux_params.values()]} == {np.float32}
    assert "cast" not in symbol.tojson()
    executor = symbol.simple_bind(mx.cpu(), data=(24, 1, 20, 20), grad_req="null")
    executor.copy_params_from(arg_params, aux_params)
    batch = next(load("digits", image_size=20).test(24))
    predicted = executor.forward(data=batch.images)[0].asnumpy().argmax(axis=1)
    accuracy = (predicted == batch.labels.asnumpy()).mean()
    assert accuracy == pytest.approx(record["history"]["epochs"][-1]["accuracy"], abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_training_learns(kind, tmp_path):
    record, _ = train(kind, tmp_path, "--policy", "O2", "--loss-scale", 64, "--batches", 60, "--batch-size", 20)
    assert record["history"]["epochs"][-1]["accuracy"] > 0.8
    assert record["history"]["epochs"][-1]["loss"] < 0.5 * math.log(10)


@pytest.mark.parametrize("kind", KINDS)
def test_several_contexts_share_a_batch(kind, tmp_path):
    one, two = (
        train(kind, tmp_path / ctx, "--policy", "O0", "--ctx", ctx)[0]["history"]["steps"]["loss"]
        for ctx in ("cpu", "cpu:0,cpu:1")
    )
    np.testing.assert_allclose(one, two, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_other_data_is_read_by_the_options(kind, tmp_path):
    write_idx(tmp_path / "mnist")
    record, _ = train(kind, tmp_path / "one", "--data", "mnist", "--data-dir", tmp_path / "mnist", "--policy", "O0")
    assert record["settings"]["data"] == "mnist"
    write_folder(tmp_path / "folder")
    record, _ = train(kind, tmp_path / "two", "--data", "folder", "--data-dir", tmp_path / "folder", "--policy", "O0")
    assert (record["settings"]["classes"], record["settings"]["image shape"]) == (3, [3, 20, 20])
