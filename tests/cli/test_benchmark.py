"""``mxmp benchmark``: from a checkpoint to times."""

import json

import mxnet as mx
import numpy as np
import pytest

from mxmp.symbol import Checkpoint
from mxmp.tune import speed
from mxmp.tune.speed import make_batch
from tests.cli.checkpoints import SHAPE, contents, mxmp, said, save, table
from tests.tune.networks import classifier, make_module

SHORT = ("--shape", SHAPE, "--seconds", "0.001")


@pytest.fixture
def prefix(tmp_path):
    return save(tmp_path)


@pytest.mark.parametrize("options", [[], ["--training"]], ids=["inference", "training"])
def test_policies_that_benchmark_is_asked_for_have_a_row_each(options, prefix, tmp_path):
    before = contents(tmp_path)
    out, err = mxmp("benchmark", prefix, *SHORT, "--policy", "float32", "--policy", "O1", "--policy", "O2", *options)
    assert err == "" and contents(tmp_path) == before
    assert [row[0] for row in table(out) if len(row) == 5] == ["policy", "float32", "O1 (emulated)", "O2 (emulated)"]
    assert ("training steps" in out) == bool(options) and said(out)["fastest"] in ("float32", "O1", "O2")


def test_without_a_policy_benchmark_has_those_of_the_processor(prefix, monkeypatch):
    monkeypatch.setattr(speed, "runs_bfloat16", lambda: False)
    out, _ = mxmp("benchmark", prefix, 3, *SHORT)
    assert [row[0] for row in table(out) if len(row) > 3] == ["policy", "float32"] and "The policy 'auto' takes" in out


def test_the_json_of_benchmark_has_the_same(prefix):
    options = "--policy", "O0", "--policy", "O2", "--output-dtype", "float32", "--json"
    found = json.loads(mxmp("benchmark", prefix, *SHORT, *options)[0])
    assert [row["policy"].partition(",")[0] for row in found["rows"]] == ["param=float32", "param=float16"]
    assert found["rows"][1]["emulated"] and found["record"] == "speed comparison"


def test_inputs_are_random_and_labels_zeros():
    words, declared = (
        mx.sym.Embedding(mx.sym.var(name, dtype=dtype), mx.sym.var("w"), input_dim=3, output_dim=2)
        for name, dtype in (("words", None), ("declared", "int32"))
    )
    target = mx.sym.LinearRegressionOutput(declared, mx.sym.var("target"))  # by whose name it is known to be a label
    args, aux = make_module().get_params()
    model = Checkpoint(mx.sym.Group([classifier(), words, target]), {**args, "w": mx.nd.ones((3, 2))}, aux)
    shapes = {"data": (2, 3, 8, 8), "softmax_label": (2,), "words": (4, 5), "declared": (2,)}
    batch = {name: array.asnumpy() for name, array in make_batch(model, shapes, {"words": "int32"}).items()}
    assert {name: array.shape for name, array in batch.items()} == shapes
    assert 0 <= batch["data"].min() < 0.1 < 0.9 < batch["data"].max() <= 1 and not batch["softmax_label"].any()
    assert batch["words"].dtype == batch["declared"].dtype == np.int32 and set(batch["words"].flat) == {0, 1}
