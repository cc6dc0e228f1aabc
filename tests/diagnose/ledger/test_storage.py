"""A ledger in a file: what a report reads, and a run that goes on."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from mxmp.diagnose import Ledger
from mxmp.errors import CheckpointError, StateError
from tests.diagnose.ledger.runs import Run, seen

SHAPES = {"conv_weight": (3, 2), "fc_weight": (4,)}


def random_grads(seed):
    random = np.random.RandomState(seed)
    return {name: (2.0 ** random.uniform(-30, 10, shape)).astype(np.float16) for name, shape in SHAPES.items()}


def ran(run, ledger, steps):
    """Return a ledger after steps whose gradients are known, the third of which overflows."""
    ledger.attach(run.trainer)
    for step in steps:
        run.step({**random_grads(step), **({"fc_weight": np.inf} if step == 2 else {})})
    return ledger


def test_the_file_is_what_a_report_reads(tmp_path):
    ledger = ran(Run(SHAPES, multi_precision=False), Ledger(every=2), range(4))
    ledger.save(str(tmp_path / "ledger.json"))
    data = json.loads((tmp_path / "ledger.json").read_text())
    assert data == ledger.to_dict()
    head = {key: data[key] for key in ("kind", "version", "dtype", "every", "steps", "sampled", "skipped")}
    assert head == dict(kind="ledger", version=2, dtype="float16", every=2, steps=4, sampled=2, skipped=1)
    layer = data["layers"][1]
    assert (layer["name"], layer["elements"], layer["skips"], layer["lost_update_share"]) == ("fc_weight", 4, 1, 1.0)
    assert sum(layer["histogram"].values()) + 8 * layer["zero_share"] == 8
    assert set(data["scale"]) == {"lowest", "highest", "last"} and data["scale"]["last"] == 1024
    assert data["advice"] == list(ledger.advice().sentences)


def test_an_infinity_is_a_string():
    run = Run({"w": (2,)}, loss_scale=None)  # nothing is checked, so nothing is skipped
    ledger = Ledger(every=1).attach(run.trainer)
    run.step({"w": np.float16([1, np.inf])})
    data = ledger.to_dict()
    assert data["layers"][0]["largest"] == "inf" and data["layers"][0]["largest_unscaled"] == 1.0
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert Ledger.from_dict(data).layers[0].largest == math.inf


def test_a_run_goes_on_with_the_ledger_of_the_one_before(tmp_path):
    path = str(tmp_path / "ledger.json")
    whole = ran(Run(SHAPES), Ledger(every=2), range(8))
    ran(Run(SHAPES), Ledger(every=2), range(4)).save(path)
    resumed = ran(Run(SHAPES), Ledger.load(path), range(4, 8))
    first, second = whole.to_dict(), resumed.to_dict()
    assert second["steps"] == first["steps"] == 8
    assert Ledger.from_dict(second).to_dict() == second
    assert {layer["name"] for layer in second["layers"]} == set(SHAPES)


def test_what_is_loaded_is_what_was_saved(tmp_path):
    path = str(tmp_path / "ledger.json")
    ledger = ran(Run(SHAPES, multi_precision=False), Ledger(every=1), range(4))
    ledger.save(path)
    loaded = Ledger.load(path)
    assert loaded.to_dict() == ledger.to_dict() and loaded.advice() == ledger.advice() and str(loaded) == str(ledger)


OF_VERSION_2 = ("not_taken_last", "non_finite_losses", "dynamic_scale", "overrides")
OF_A_LAYER = ("skips_at", "gradient_before_and_latest", "weight_before_and_latest")


def old(ledger):
    """Return a ledger as the release before wrote it."""
    data = {**{key: value for key, value in ledger.to_dict().items() if key not in OF_VERSION_2}, "version": 1}
    layers = [{key: value for key, value in layer.items() if key not in OF_A_LAYER} for layer in data["layers"]]
    return {**data, "layers": layers}


def test_a_ledger_of_version_1_is_read():
    ledger = seen({"a_weight": np.ones(3), "b_weight": np.zeros(4)})
    loaded = Ledger.from_dict(old(ledger))
    assert loaded.advice() == ledger.advice() and str(loaded) == str(ledger)
    assert loaded.to_dict()["version"] == 2
    assert ran(Run(SHAPES), Ledger.from_dict(old(ran(Run(SHAPES), Ledger(every=2), range(4)))), range(4, 6)).steps == 6


@pytest.mark.parametrize("layers", [None, [1], [{}], [{"name": "w"}]])
def test_damage_in_a_ledger_of_version_1_is_told(layers):
    with pytest.raises(StateError, match="the ledger"):
        Ledger.from_dict({**old(seen({"w": np.ones(3)})), "layers": layers})


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    with pytest.raises(CheckpointError, match="there is no folder"):
        Ledger().save(str(tmp_path / "missing" / "ledger.json"))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="ledger.json: the ledger cannot be read: No such file"):
        Ledger.load(str(tmp_path / "ledger.json"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no ledger: "),
        ("[]", "is no ledger; expected what Ledger.save writes"),
        ('{"kind": "tune"}', "is no ledger; expected what Ledger.save writes"),
        ('{"kind": "ledger", "version": 3}', "has version 3; this mxmp reads versions 1 and 2"),
        ('{"kind": "ledger", "version": 2}', "lacks .*'dtype'"),
        ('{"kind": "ledger", "version": 1}', "lacks .*'dtype'"),
    ],
)
def test_another_file_is_refused(tmp_path, text, says):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(StateError, match=says):
        Ledger.load(str(path))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("steps",), -1),
        (("every",), "2"),
        (("dtype",), "float32"),
        (("scale",), None),
        (("scales",), {"x": {}}),
        (("layers", 0, "counts"), {"10": {"300": 1}}),
        (("layers", 0, "counts"), {"10": {"3": -1}}),
        (("layers", 0, "lost_updates"), [1]),
        (("layers", 0, "largest"), None),
        (("layers", 0), {}),
    ],
    ids=str,
)
def test_damage_is_told(where, value):
    data = seen({"w": np.ones(3)}).to_dict()
    part = data
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    with pytest.raises(StateError, match="the run's ledger"):
        Ledger.from_dict(data, "the run's ledger")
