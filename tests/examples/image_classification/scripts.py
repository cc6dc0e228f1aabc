"""Runs a script as a user does, but in this process."""

from __future__ import annotations

import json

from click.testing import CliRunner

from examples.image_classification import train_gluon, train_module

TRAINERS = {"gluon": train_gluon.main, "module": train_module.main}
SMALL = ("--network", "symbols/lenet", "--image-size", 20, "--batch-size", 8, "--batches", 3, "--learning-rate", 0.02)


def call(main, *args):
    """Run a script and return what it prints, in one line."""
    result = CliRunner(env={"COLUMNS": "160"}).invoke(main, list(map(str, args)), catch_exceptions=False)
    return result.exit_code, " ".join(result.output.split())


def train(kind, output, *args):
    """Train in a small way; return the record of the run."""
    code, text = call(TRAINERS[kind], *SMALL, "--epochs", 2, "--output", output, *args)
    assert code == 0, text
    return json.loads((output / "run.json").read_text()), text
