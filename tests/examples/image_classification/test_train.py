"""Both training scripts, run small."""

from __future__ import annotations

import math
import signal

import mxnet as mx
import numpy as np
import pytest

from examples.image_classification import train_gluon, train_module
from examples.image_classification.data import load
from tests.examples.image_classification.files import write_folder, write_idx
from tests.examples.image_classification.scripts import SMALL, TRAINERS, call, train

KINDS = list(TRAINERS)
LEARNERS = {"gluon": train_gluon.GluonLearner, "module": train_module.ModuleLearner}


def untimed(record):
    steps = {name: values for name, values in record["history"]["steps"].items() if name != "seconds"}
    return steps, record["history"]["epochs"], record["files"]


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
    executor = symbol.simple_bind(mx.cpu(), data=(24, 1, 20, 20), grad_req="null")
    executor.copy_params_from(arg_params, aux_params)
    batch = next(load("digits", image_size=20).test(24))
    predicted = executor.forward(data=batch.images)[0].asnumpy().argmax(axis=1)
    accuracy = (predicted == batch.labels.asnumpy()).mean()
    assert accuracy == pytest.approx(record["history"]["epochs"][-1]["accuracy"], abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_float16_starts_from_the_weights_and_batches_of_float32(kind, tmp_path):
    first, second = (train(kind, tmp_path / policy, "--policy", policy)[0]["history"] for policy in ("O0", "O1"))
    assert first["steps"]["loss"][0] == pytest.approx(second["steps"]["loss"][0], rel=1e-2)
    assert first["steps"]["loss"] != second["steps"]["loss"]
    assert first["steps"]["loss scale"] == [1.0] * 6
    assert second["steps"]["loss scale"][0] == 2.0**8


@pytest.mark.parametrize("kind", KINDS)
def test_training_learns(kind, tmp_path):
    record, _ = train(kind, tmp_path, "--policy", "O2", "--loss-scale", 64, "--batches", 60, "--batch-size", 20)
    assert record["history"]["epochs"][-1]["accuracy"] > 0.8
    assert record["history"]["epochs"][-1]["loss"] < 0.5 * math.log(10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_interrupted_resumes_to_the_bit(kind, tmp_path, monkeypatch):
    args = ("--policy", "O2", "--loss-scale", "dynamic")
    unbroken, _ = train(kind, tmp_path / "unbroken", *args)
    learner = LEARNERS[kind]
    step = learner.step
    taken = []

    def interrupted(self, batch):
        taken.append(batch)
        if len(taken) == 4:
            signal.raise_signal(signal.SIGINT)
        return step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(learner, "step", interrupted)
        output = tmp_path / "broken"
        code, text = call(TRAINERS[kind], *SMALL, "--epochs", 2, "--output", output, *args)
    assert code == 130
    assert "interrupted after step 4; it is saved, go on with:" in text
    resumed, _ = train(kind, output, *args, "--resume")
    assert untimed(resumed)[:2] == untimed(unbroken)[:2]
    assert resumed["files"]["net-0000.params"] == unbroken["files"]["net-0000.params"]


@pytest.mark.parametrize("kind", KINDS)
def test_several_contexts_share_a_batch(kind, tmp_path):
    one, two = (
        train(kind, tmp_path / ctx, "--policy", "O0", "--ctx", ctx)[0]["history"]["steps"]["loss"]
        for ctx in ("cpu", "cpu:0,cpu:1")
    )
    np.testing.assert_allclose(one, two, rtol=1e-4)


def test_a_checkpoint_of_another_network_is_refused_by_name(tmp_path):
    train("gluon", tmp_path)
    code, text = call(TRAINERS["gluon"], *SMALL, "--network", "symbols/mlp", "--output", tmp_path, "--resume")
    assert code == 1
    assert "a checkpoint with network symbols/lenet, not symbols/mlp" in text
    code, text = call(TRAINERS["module"], *SMALL, "--output", tmp_path, "--resume")
    assert "a checkpoint with script train_gluon, not train_module" in text


@pytest.mark.parametrize("kind", KINDS)
def test_other_data_is_read_by_the_options(kind, tmp_path):
    write_idx(tmp_path / "mnist")
    record, _ = train(kind, tmp_path / "one", "--data", "mnist", "--data-dir", tmp_path / "mnist", "--policy", "O0")
    assert record["settings"]["data"] == "mnist"
    write_folder(tmp_path / "folder")
    record, _ = train(kind, tmp_path / "two", "--data", "folder", "--data-dir", tmp_path / "folder", "--policy", "O0")
    assert (record["settings"]["classes"], record["settings"]["image shape"]) == (3, [3, 20, 20])


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--network", "lenett"), 2, "--network lenett: there is no such network; the nearest are lenet"),
        (("--data", "cifar10"), 2, "--data cifar10 needs --data-dir"),
        (("--data", "mnist", "--data-dir", "nowhere"), 1, "nowhere/train-images-idx3-ubyte: there is no such file"),
        (("--batch-size", 1201), 2, "there are fewer than 1201 training examples"),
        (("--resume",), 1, "there is no checkpoint; leave --resume out"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_writes_nothing(args, code, message, tmp_path):
    output = tmp_path / "output"
    found, text = call(train_gluon.main, *SMALL, "--output", output, *args)
    assert found == code
    assert message in text
    assert "Traceback" not in text
    assert not output.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_help_names_every_option(kind):
    code, text = call(TRAINERS[kind], "--help")
    assert code == 0
    options = (
        "policy loss-scale ctx epochs batches batch-size seed resume force output network data data-dir image-size"
    )
    assert all(f"--{option} " in text for option in options.split())
