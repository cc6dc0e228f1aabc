"""Options as a user types them."""

from __future__ import annotations

import json

import click
import mxnet as mx
import pytest
from click.testing import CliRunner

import mxmp
from examples.common import options as module
from examples.common.command import Command
from examples.common.options import OUTPUT, training_options


def read(*args):
    """Return the Options that arguments give, or the last line of what is said about them."""
    found = []

    @click.command(cls=Command)
    @training_options("name", epochs=7, batch_size=8)
    def main(options):
        found.append(options)

    result = CliRunner().invoke(main, list(args))
    if result.exit_code:
        assert not found
        assert result.exit_code == 2
        return result.output.splitlines()[-1]
    return found[0]


def test_defaults_are_those_of_the_script():
    found = read()
    assert (found.epochs, found.batch_size, found.batches, found.output) == (7, 8, None, OUTPUT / "name")
    assert (found.policy, found.ctx) == (mxmp.Policy.parse("O1"), (mx.cpu(),))


def test_the_loss_scale_is_the_policys_unless_it_is_given():
    assert read("--policy", "O0").loss_scale == mxmp.loss_scale.NoOpLossScale()
    assert read("--policy", "O1,loss_scale=128").loss_scale == mxmp.loss_scale.StaticLossScale(128)
    assert read("--policy", "O1", "--loss-scale", "none").loss_scale == mxmp.loss_scale.NoOpLossScale()
    assert read("--policy", "O0", "--loss-scale", "dynamic").loss_scale == mxmp.loss_scale.DynamicLossScale()


def test_several_contexts_are_read_in_order():
    assert read("--ctx", "cpu:1, cpu:0").ctx == (mx.cpu(1), mx.cpu(0))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ctx", "tpu:0"], "'tpu:0' is no context; expected 'cpu', 'gpu:0', or several"),
        (["--ctx", "cpu:x"], "'cpu:x' is no context"),
        (["--ctx", "cpu:1,cpu:1"], "expected different contexts of one kind"),
        (["--ctx", "gpu:99"], "'gpu:99': MXNet sees"),
        (["--policy", "O9"], "unknown policy 'O9'"),
        (["--loss-scale", "big"], "unknown loss scale 'big'; expected 'dynamic', a number, 'none' or 'policy'"),
        (["--loss-scale", "-1"], "is no loss scale"),
        (["--epochs", "0"], "0 is not in the range"),
        (["--ctx", "cpu:0,cpu:1", "--batch-size", "1"], "Invalid value for --batch-size: 1 for 2 contexts."),
    ],
)
def test_bad_options_are_refused_in_one_line(args, message):
    assert message in read(*args)


def test_bfloat16_is_refused_where_the_processor_does_not_run_it(monkeypatch):
    monkeypatch.setattr(module, "runs_bfloat16", lambda: False)
    assert "bfloat16 does not run on this processor" in read("--policy", "mixed_bfloat16")
    assert read("--policy", "O1").policy.compute_dtype == "float16"


def test_settings_are_json_and_tell_different_runs_apart():
    first = read("--seed", "1").settings()
    assert json.loads(json.dumps(first)) == first == read("--seed", "1", "--resume", "--ctx", "cpu:1").settings()
    for args in (
        ["--policy", "O2"],
        ["--loss-scale", "8"],
        ["--epochs", "3"],
        ["--batch-size", "4"],
        ["--batches", "2"],
    ):
        assert read("--seed", "1", *args).settings() != first
