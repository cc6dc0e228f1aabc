"""How scripts end."""

from __future__ import annotations

import click
import mxnet as mx
import pytest
from click.testing import CliRunner

from examples.common.command import Command, Interrupted
from mxmp.errors import TrainerError


def fail_in_mxnet():
    mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((2, 3))).wait_to_read()


def raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("work", "code", "start"),
    [
        (raising(TrainerError("step came\ntoo early.")), 1, "Error: step came too early."),
        (raising(click.ClickException("no file.")), 1, "Error: no file."),
        (raising(OSError(28, "No space left", "run.json")), 1, "Error: [Errno 28] No space left: 'run.json'"),
        (raising(Interrupted("go on with: x")), 130, "go on with: x"),
        (raising(KeyboardInterrupt()), 130, "interrupted; nothing was saved since the last epoch"),
        (fail_in_mxnet, 1, "Error: MXNet: "),
        (lambda: None, 0, ""),
    ],
    ids=["mxmp", "click", "os", "interrupted", "ctrl-c", "mxnet", "success"],
)
def test_a_script_ends_with_one_line_and_a_code(work, code, start):
    result = CliRunner().invoke(click.command(cls=Command)(work), [])
    assert result.exit_code == code
    assert result.output.startswith(start)
    assert len(result.output.splitlines()) == bool(start)
