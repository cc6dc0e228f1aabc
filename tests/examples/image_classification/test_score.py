"""Scoring and converting checkpoints."""

from __future__ import annotations

import itertools

import click
import mxnet as mx
import numpy as np
import pytest

from examples.image_classification import convert_checkpoint, score
from examples.image_classification.data import load
from examples.image_classification.scoring import score as score_model
from mxmp.symbol import convert_model, load_checkpoint, on_cpu
from tests.examples.image_classification.files import write_folder
from tests.examples.scripts import call, train

DATA = ("--image-size", 20, "--batches", 4, "--batch-size", 50)


@pytest.fixture(scope="module", params=["gluon", "module"])
def prefix(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    train(request.param, folder, "--policy", "O0", "--batches", 20, "--batch-size", 20)
    return str(folder / "net")


def batches(count=4):
    return list(itertools.islice(load("digits", image_size=20).test(50), count))


def accuracy_in_plain_mxnet(symbol, arg_params, aux_params):
    types = {"data": "float32", **{name: array.dtype for name, array in {**arg_params, **aux_params}.items()}}
    executor = symbol.simple_bind(mx.cpu(), data=(50, 1, 20, 20), grad_req="null", type_dict=types)
    executor.copy_params_from(arg_params, aux_params)
    right = [
        executor.forward(data=batch.images)[0].asnumpy().argmax(axis=1) == batch.labels.asnumpy() for batch in batches()
    ]
    return np.mean(right)


def test_score_is_what_plain_mxnet_gets_right(prefix):
    wanted = accuracy_in_plain_mxnet(*mx.model.load_checkpoint(prefix, 0))
    assert 0.2 < wanted < 1
    code, text = call(score.main, prefix, *DATA)
    assert code == 0
    assert f"images 200 of digits accuracy {100 * wanted:.2f} %" in text


def test_a_float16_checkpoint_is_written_and_both_are_scored(prefix, tmp_path):
    out = str(tmp_path / "half")
    code, text = call(convert_checkpoint.main, prefix, out, *DATA)
    assert code == 0
    symbol, arg_params, aux_params = mx.model.load_checkpoint(out, 0)
    assert arg_params["conv1_weight"].dtype == np.float16
    first = accuracy_in_plain_mxnet(*mx.model.load_checkpoint(prefix, 0))
    second = accuracy_in_plain_mxnet(on_cpu(symbol), arg_params, aux_params)
    cells = text.replace("│", " ").split()
    shown = [cells[number - 1] for number, cell in enumerate(cells) if cell == "%"]
    assert shown == [f"{100 * first:.2f}", f"{100 * second:.2f}"]
    size = sum(array.size * array.dtype().itemsize for array in arg_params.values())
    assert f"{size:,}" in text


def test_a_model_is_scored_in_the_precision_that_it_is_stored_in(prefix):
    """A huge last layer predicts the same in float32, but not where float16 clamps it."""
    symbol, arg_params, aux_params = load_checkpoint(prefix, 0)
    huge = {name: array * 1e8 if name.startswith("fc2") else array for name, array in arg_params.items()}
    half = convert_model(symbol, huge, aux_params, "O3", shapes={"data": (50, 1, 20, 20)})
    wanted = score_model((symbol, arg_params, aux_params), batches(), mx.cpu()).accuracy
    assert score_model((symbol, huge, aux_params), batches(), mx.cpu()).accuracy == wanted
    assert score_model(half, batches(), mx.cpu()).accuracy != wanted


def test_a_conversion_replaces_no_file_unless_it_is_forced(prefix, tmp_path):
    out = tmp_path / "half"
    (tmp_path / "half-0000.params").write_text("mine")
    code, text = call(convert_checkpoint.main, prefix, out, *DATA)
    assert code == 1
    assert "half-0000.params: it exists; name another OUT, or give --force" in text
    assert (tmp_path / "half-0000.params").read_text() == "mine"
    assert call(convert_checkpoint.main, prefix, out, *DATA, "--force")[0] == 0


def test_missing_and_wrong_checkpoints_are_refused_by_name(tmp_path):
    code, text = call(score.main, tmp_path / "net", *DATA)
    assert (code, f"{tmp_path / 'net'}-symbol.json: there is no such file" in text) == (1, True)
    code, text = call(convert_checkpoint.main, tmp_path / "net", tmp_path / "half", *DATA)
    assert (code, "net-symbol.json: there is no such file" in text) == (1, True)


def test_images_that_do_not_fit_the_network_are_refused(prefix):
    code, text = call(score.main, prefix, "--image-size", 40)
    assert code == 1
    assert "Error: the network does not take images of 1x40x40" in text


def test_a_network_with_fewer_classes_than_the_data_is_refused(tmp_path):
    write_folder(tmp_path / "folder")
    train("gluon", tmp_path, "--data", "folder", "--data-dir", tmp_path / "folder", "--policy", "O0")
    model = load_checkpoint(str(tmp_path / "net"), 0)
    gray = [batch._replace(images=mx.nd.concat(*[batch.images] * 3, dim=1)) for batch in batches(1)]
    with pytest.raises(click.ClickException, match="the network has 3 classes, and the data has more"):
        score_model(model, gray, mx.cpu())


def test_scoring_takes_one_context(prefix):
    assert "scoring takes one context" in call(score.main, prefix, *DATA, "--ctx", "cpu:0,cpu:1")[1]
