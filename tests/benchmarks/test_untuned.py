"""The benchmark of all classifiers as they come: what it measures, and what is wanted of it."""

from __future__ import annotations

import json

import mxnet as mx
import pytest

from benchmarks import requirements, untuned
from benchmarks.common import AMX, AVX512_BF16
from benchmarks.comparison import Comparison
from benchmarks.tasks import classifier, classifiers, make_task
from tests.benchmarks.columns import column


def test_classifiers_are_those_of_images():
    names = classifiers()
    assert {"resnet50_v1", "mobilenetv3_small", "cifar_resnet20_v1", "inceptionv3", "resnest50", "dla34"} <= set(names)
    others = ("resnet50_v1b_kinetics400", "ssd_512_resnet50_v1_voc", "yolo3_darknet53_coco", "resnet50_v1_int8", "hrnet_w48_s")
    assert len(names) > 100 and not set(others) & set(names)


def test_a_classifier_gets_images_of_its_size():
    assert make_task(classifier("cifar_resnet20_v1"), 2).inputs[0].shape == (2, 3, 32, 32)


def verdicts(found, unit):
    return {check.what: check.verdict for check in requirements.untuned(found, unit)}


@pytest.mark.parametrize("seconds, verdict", [(1.1, requirements.MET), (1.2, requirements.NOT_MET)])
def test_no_network_is_to_be_slower_than_float32_by_more_than_a_tenth(seconds, verdict):
    found = {
        name: Comparison([column("training", "float32", "float32", 1.0), column("training", "mxmp", "bfloat16", each)])
        for name, each in (("resnet50_v1", 0.5), ("mobilenet1.0", seconds))
    }
    what = "training: each network in bfloat16, untuned, against float32"
    assert verdicts(found, AMX) == verdicts(found, AVX512_BF16) == {what: verdict}
    assert verdicts(found, "") == {what: requirements.NOT_HERE}


def test_float32_that_is_folded_and_fused_is_compared_too(tmp_path, capsys):
    """With float32 for the policy, which runs everywhere."""
    small = ["--networks", "cifar_resnet20_v1", "--batch-size", "2", "--rounds", "3", "--policy", "float32"]
    assert untuned.main([*small, "--out", str(tmp_path)]) == 0
    columns = json.loads((tmp_path / "untuned.json").read_text())["networks"]["cifar_resnet20_v1"]
    fronts = ["training", "inference", "inference, folded and fused"]
    assert [each["front"] for each in columns] == [front for front in fronts for _ in range(2)]
    assert all(len(each["seconds"]) == 3 for each in columns)
    assert len({tuple(each["seconds"]) for each in columns}) == 6
    assert "Untuned, inference, folded and fused" in capsys.readouterr().out


def test_a_network_that_fails_is_a_line(monkeypatch, tmp_path, capsys):
    def build(self, objective, policy):
        raise mx.MXNetError("MXNetError: could not create a primitive")

    monkeypatch.setattr(untuned.Classifier, "build", build)
    small = ["--networks", "cifar_resnet20_v1", "--objectives", "training", "--policy", "float32"]
    assert untuned.main([*small, "--out", str(tmp_path)]) == 0
    assert "training, float32: fails: MXNetError: could not create a primitive" in capsys.readouterr().out
