"""Runs training scripts as a user does, small and in this process."""

from __future__ import annotations

import json
import signal
from typing import Any, NamedTuple

from click.testing import CliRunner

from examples.gan import train as gan
from examples.image_classification import train_gluon, train_module
from examples.ssd import train_gluon as ssd_gluon
from examples.ssd import train_symbol as ssd_symbol
from examples.word_lm import train_gluon as lm_gluon
from examples.word_lm import train_module as lm_module

WORDS = ["a", "b", "c", "a", "d", "a", "b", "e"] * 30
CLASSIFIER = (
    *("--network", "symbols/lenet", "--image-size", 20, "--batch-size", 8),
    *("--batches", 3, "--epochs", 2, "--learning-rate", 0.02),
)
DETECTOR = ("--image-size", 64, "--batch-size", 4, "--batches", 2, "--epochs", 2)
LANGUAGE = ("--hidden", 8, "--layers", 1, "--length", 5, "--batch-size", 4, "--epochs", 2, "--batches", 4)
GAN = ("--channels", 4, "--batches", 2, "--batch-size", 8, "--epochs", 2)


class Script(NamedTuple):
    """A training script: its module, its learner, options that make it small, and what it calls itself and its net."""

    module: Any
    learner: Any
    small: tuple
    name: str
    part: str = "net"


SCRIPTS = {
    "gluon": Script(train_gluon, train_gluon.GluonLearner, CLASSIFIER, "train_gluon"),
    "module": Script(train_module, train_module.ModuleLearner, CLASSIFIER, "train_module"),
    "ssd gluon": Script(ssd_gluon, ssd_gluon.GluonLearner, DETECTOR, "ssd/train_gluon"),
    "ssd symbol": Script(ssd_symbol, ssd_symbol.SymbolLearner, DETECTOR, "ssd/train_symbol"),
    "lm gluon": Script(lm_gluon, lm_gluon.GluonLearner, LANGUAGE, "word_lm_gluon", "model"),
    "lm module": Script(lm_module, lm_module.ModuleLearner, LANGUAGE, "word_lm_module", "model"),
    "gan": Script(gan, gan.GanLearner, GAN, "gan", "generator"),
}


def call(main, *args):
    """Run a script; return its exit code and what it prints, in one line."""
    result = CliRunner(env={"COLUMNS": "160"}).invoke(main, list(map(str, args)), catch_exceptions=False)
    return result.exit_code, " ".join(result.output.split())


def start(name, output, *args):
    """Run a training script in a small way, on words of its own if it is a language model's; return what `call` does."""
    script = SCRIPTS[name]
    if name.startswith("lm") and "--text" not in args:
        text = output.parent / f"{output.name}.txt"
        text.write_text(" ".join(WORDS))
        args = ("--text", text, *args)
    return call(script.module.main, *script.small, "--output", output, *args)


def train(name, output, *args):
    """Run a training script to its end; return the record of the run and what it printed."""
    code, text = start(name, output, *args)
    assert code == 0, text
    return json.loads((output / "run.json").read_text()), text


def untimed(record):
    """Return what a run recorded but for the times: series of steps, epochs, skipped steps."""
    history = record["history"]
    steps = {name: values for name, values in history["steps"].items() if name != "seconds"}
    return steps, history["epochs"], history["skipped"]


def interrupt_in_step(monkeypatch, learner, number):
    """Press Ctrl-C in a step of a learner; return the list of all batches that it takes from here on."""
    step, taken = learner.step, []

    def interrupted(self, batch):
        taken.append(batch)
        if len(taken) == number:
            signal.raise_signal(signal.SIGINT)
        return step(self, batch)

    monkeypatch.setattr(learner, "step", interrupted)
    return taken
