"""What all training scripts have in common, each run small."""

from __future__ import annotations

import pytest

from examples.distributed import train as distributed
from examples.ssd import plot_gradients
from tests.examples.scripts import SCRIPTS, WORDS, call, interrupt_in_step, start, train, untimed

ALL = [*SCRIPTS]
FLOAT16_LOSSES = {"gluon": 1e-2, "module": 1e-2, "ssd gluon": 2e-2, "ssd symbol": 2e-2}

SHARED = "policy loss-scale ctx epochs batches batch-size seed resume force output learning-rate"
OPTIONS = {
    **{name: f"{SHARED} network data data-dir image-size kvstore" for name in ("gluon", "module")},
    **{name: f"{SHARED} network data data-dir image-size class-names" for name in ("ssd gluon", "ssd symbol")},
    **{name: f"{SHARED} text vocabulary length hidden layers dropout clip" for name in ("lm gluon", "lm module")},
    "gan": f"{SHARED} image-size channels",
}


@pytest.mark.parametrize("name", ALL)
def test_a_run_that_was_interrupted_resumes_to_the_bit(name, tmp_path, monkeypatch):
    args = ("--policy", "O2", "--loss-scale", "dynamic")
    unbroken, _ = train(name, tmp_path / "unbroken", *args)
    number = unbroken["history"]["epochs"][0]["step"] + 1
    output, part = tmp_path / "broken", f"{SCRIPTS[name].part}-0000.params"
    taken = interrupt_in_step(monkeypatch, SCRIPTS[name].learner, number)
    code, text = start(name, output, *args)
    assert (code, f"interrupted after step {number}; it is saved, go on with:" in text) == (130, True)
    resumed, _ = train(name, output, *args, "--resume")
    assert len(taken) == unbroken["history"]["epochs"][1]["step"]
    assert untimed(resumed) == untimed(unbroken)
    assert resumed["files"][part] == unbroken["files"][part]


@pytest.mark.parametrize(("name", "rel"), FLOAT16_LOSSES.items())
def test_float16_starts_from_the_weights_and_batches_of_float32(name, rel, tmp_path):
    one, two = (train(name, tmp_path / policy, "--policy", policy)[0]["history"]["steps"] for policy in ("O0", "O1"))
    for loss in [series for series in one if series.startswith("loss") and series != "loss scale"]:
        assert one[loss][0] == pytest.approx(two[loss][0], rel=rel)
        assert one[loss] != two[loss]
    assert set(one["loss scale"]) == {1.0}
    assert two["loss scale"][0] == 2.0**8


@pytest.mark.parametrize(
    ("name", "other", "args", "message"),
    [
        ("gluon", "gluon", ("--network", "symbols/mlp"), "network symbols/lenet, not symbols/mlp"),
        ("gluon", "module", (), "script train_gluon, not train_module"),
        ("ssd symbol", "ssd gluon", (), "script ssd/train_symbol, not ssd/train_gluon"),
        ("lm gluon", "lm module", (), "script word_lm_gluon, not word_lm_module"),
        ("lm gluon", "lm gluon", ("--text", "other.txt"), "text "),
        ("gan", "gan", ("--channels", 8), "channels 4, not 8"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_by_name(name, other, args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.txt").write_text(" ".join(WORDS[::-1]))
    train(name, tmp_path / "run", "--epochs", 1, "--batches", 1, "--policy", "O0")
    code, text = start(other, tmp_path / "run", "--epochs", 1, "--batches", 1, "--policy", "O0", "--resume", *args)
    assert (code, f"a checkpoint with {message}" in text) == (1, True), text


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--resume",), 1, "there is no checkpoint; leave --resume out"),
        (("--policy", "O9"), 2, "unknown policy 'O9'"),
        (("--learning-rate", 0), 2, "0.0 is not in the range x>0"),
        (("--batch-size", 5000), 2, "--batch-size: "),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_bad_input_is_refused_in_one_line_and_writes_nothing(name, args, code, message, tmp_path):
    refused(name, args, code, message, tmp_path)


@pytest.mark.parametrize(
    ("name", "args", "code", "message"),
    [
        ("gluon", ("--network", "lenett"), 2, "--network lenett: there is no such network; the nearest are lenet"),
        ("gluon", ("--data", "cifar10"), 2, "--data cifar10 needs --data-dir"),
        ("gluon", ("--data", "mnist", "--data-dir", "nowhere"), 1, "nowhere/train-images-idx3-ubyte: there is no such"),
        ("gluon", ("--batch-size", 1201), 2, "there are fewer than 1201 training examples"),
        ("ssd gluon", ("--network", "ssd_512_resnet50"), 2, "no such SSD; the nearest are ssd_512_resnet50_v1"),
        ("ssd symbol", ("--network", "ssd512_resnet5"), 2, "no such SSD in symbols/; there are ssd300_vgg16, ssd512_"),
        ("ssd symbol", ("--network", "resnet50_v1"), 2, "no such SSD in symbols/"),
        ("ssd gluon", ("--data", "voc"), 2, "--data voc needs --data-dir"),
        ("ssd gluon", ("--data", "voc", "--data-dir", "nowhere"), 1, "nowhere: there is no such folder. http"),
        ("ssd symbol", ("--data", "records", "--data-dir", "nowhere"), 1, "nowhere: there is no train.rec in it"),
        ("ssd gluon", ("--class-names", "a,a"), 2, "expected different names with commas between"),
        ("ssd gluon", ("--class-names", "a,b"), 2, "digits have their own"),
        ("lm module", ("--vocabulary", 1), 2, "1 is not in the range x>=2"),
        ("lm module", ("--dropout", 1), 2, "1.0 is not in the range 0<=x<1"),
        ("lm module", ("--clip", 0), 2, "0.0 is not in the range x>0"),
        ("gan", ("--batch-size", 1201), 2, "there are fewer than 1201 training examples"),
        ("gan", ("--image-size", 20), 2, "'20' is not one of '16', '32'"),
        ("gan", ("--channels", 2), 2, "2 is not in the range x>=4"),
    ],
)
def test_bad_options_of_a_script_are_refused(name, args, code, message, tmp_path):
    refused(name, args, code, message, tmp_path)


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (None, 2, "does not exist"),
        (b"\xff\xfe\x00", 1, "not a text in UTF-8: invalid start byte at byte 0"),
        (b"two words", 1, "there are 2 words; expected a text to learn from"),
        (b"word " * 40, 2, "5 words are held out, fewer than 2 in each of 4 rows"),
    ],
    ids=["missing", "binary", "words", "rows"],
)
def test_a_text_that_cannot_be_used_is_refused(content, code, message, tmp_path):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    refused("lm gluon", ("--text", path), code, message, tmp_path)


def refused(name, args, code, message, folder):
    found, text = start(name, folder / "output", *args)
    assert (found, "Traceback" in text) == (code, False), text
    assert message in text
    assert not (folder / "output").exists()


@pytest.mark.parametrize("name", ALL)
def test_help_names_every_option(name):
    shows(SCRIPTS[name].module.main, OPTIONS[name])


def test_help_of_the_other_scripts_names_every_option():
    shared = "network data data-dir image-size class-names learning-rate ctx batch-size seed output"
    shows(plot_gradients.main, f"{shared} steps every")
    text = shows(distributed.main, "workers engine api policy ctx epochs batch-size resume output network data")
    assert "--kvstore" not in text
    assert text.count("--output ") == 1 and "output/distributed" in text


def shows(main, options):
    code, text = call(main, "--help")
    assert code == 0
    assert [each for each in options.split() if f"--{each} " not in text] == []
    return text
