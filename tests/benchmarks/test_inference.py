"""The forms of inference: which of them run where, what they are compared with, and the benchmark run small."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest

from benchmarks import forms, inference, zoo
from benchmarks.comparison import FLOAT32, NO_BFLOAT16, OWN, PEER
from benchmarks.forms import Form, missing
from mxmp import Policy

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def model():
    return zoo.make_model("resnet18_v1", batch_size=1, image_size=32)


def listed(policy):
    return forms.forms(Policy.parse(policy))


def test_forms_have_titles_of_their_own():
    found = listed("mixed_bfloat16")
    assert len({(form.front, form.title) for form in found}) == len(found)
    assert {(form.front, form.who) for form in found} == {
        (front, who) for front in ("symbolic", "gluon") for who in (FLOAT32, PEER, OWN)
    }


def test_a_float32_policy_has_float32_forms_alone():
    assert {form.dtype for form in listed("float32")} == {"float32"}
    assert len(listed("float32")) == sum(form.dtype == "float32" for form in listed("mixed_bfloat16"))


def test_a_policy_that_stores_its_weights_is_measured_once():
    assert "mxmp" in {form.title for form in listed("O1")}
    assert "mxmp" not in {form.title for form in listed("O2")}


@pytest.mark.parametrize("bfloat16", [True, False])
def test_bfloat16_is_missing_where_mxnet_runs_none(bfloat16):
    for form in listed("mixed_bfloat16"):
        why = missing(form, bfloat16)
        assert why == (NO_BFLOAT16 if form.dtype == "bfloat16" and not bfloat16 else None)


def test_mxnet_alone_has_no_float16_on_a_cpu():
    why = {form.title: missing(form, bfloat16=False) for form in listed("O1")}
    assert why["mxmp, frozen"] is None and why["float32"] is None and "float16" in why["contrib.amp"]
    assert "float16" in why["mxmp, exported"]


def test_measure_goes_on_past_forms_that_do_not_run(model):
    def fails(model):
        raise mx.MXNetError("Traceback\n  at somewhere\nMXNetError: could not create a reorder\n  0x17")

    def never(model):
        raise AssertionError("not to be built")

    tried = [
        listed("float32")[0],
        Form("symbolic", OWN, "fails", "float32", fails),
        Form("symbolic", OWN, "low", "bfloat16", never),
    ]
    base, failing, low = inference.measure(model, tried, bfloat16=False, rounds=2, until=0).columns
    assert len(base.seconds) == 2 and not base.missing and base.error < 1e-5
    assert failing.missing == "fails: MXNetError: could not create a reorder" and failing.failed
    assert low.missing == NO_BFLOAT16 and not low.failed
    assert not failing.seconds and not low.seconds


def test_error_is_relative_to_the_reference():
    assert forms.error(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 0
    assert forms.error(np.array([3.0, 5.0]), np.array([3.0, 4.0])) == pytest.approx(0.2)


def test_models_have_statistics_that_matter(model):
    """They are no zeros and ones, and a copy has the same values."""
    norms = [param for name, param in model.net.collect_params().items() if "running" in name]
    assert len(norms) == 2 * 20  # ResNet-18's BatchNorms
    assert all(np.ptp(param.data().asnumpy()) > 0 for param in norms)
    output = model.net(model.images).asnumpy()
    assert (model.copy()(model.images).asnumpy() == output).all()
    assert 0.05 < output.std() < 50  # the signal neither dies nor explodes
    args, aux = model.params()
    assert set(aux) == {param.name for param in norms} and not set(args) & set(aux)


def test_models_depend_on_the_seed_alone(model):
    again, other = (zoo.make_model("resnet18_v1", 1, 32, seed) for seed in (0, 1))
    outputs = [each.net(each.images).asnumpy() for each in (model, again, other)]
    assert (outputs[0] == outputs[1]).all() and (outputs[0] != outputs[2]).any()


@pytest.mark.slow
def test_emulated_inference_writes_json_tables_and_plot(tmp_path, capsys):
    arguments = ["--networks", "resnet18_v1", "--image-size", "32", "--batch-size", "1", "--rounds", "2"]
    assert inference.main([*arguments, "--policy", "O1", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "inference.json").read_text())
    columns = {(each["front"], each["title"]): each for each in result["networks"]["resnet18_v1"]}
    for (front, title), column in columns.items():
        if column["who"] == PEER or title == "mxmp, exported":
            assert "float16" in column["missing"]
        else:
            assert len(column["seconds"]) == 2 and column["speed"] > 0, (front, title)
            low = column["dtype"] == "float16"
            assert 1e-5 < column["error"] < 1e-2 if low else column["error"] < 1e-5, (front, title)
    assert result["machine"]["amx"] in ("on", "off", "not there") and result["options"]["policy"] == "O1"
    assert {check["verdict"] for check in result["requirements"] if check["what"].startswith("AMX")} == {
        "not measurable here"
    }
    assert (tmp_path / "inference.png").read_bytes().startswith(PNG)
    assert "Inference, batch 1, gluon" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.bfloat16
def test_every_form_runs_in_bfloat16(model):
    for column in inference.measure(model, listed("mixed_bfloat16"), True, rounds=1, until=0).columns:
        assert column.seconds and not column.missing, column
        assert column.error < (0.2 if column.dtype == "bfloat16" else 1e-5), column
