"""Saves that are killed, as by ``kill -9``, at any moment: the older files are there or the newer."""

import itertools
import os
import signal
import time
import warnings

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import CheckpointError
from mxmp.symbol import load_checkpoint, load_params, save_checkpoint
from tests.stress.killed import killed_at_each_rename
from tests.symbol.small import dense

DATA = mx.sym.var("x")


def text(symbol):
    return symbol.tojson(remove_amp_cast=False)


@pytest.mark.behaviour(33)
def test_a_save_that_is_killed_leaves_the_older_file_or_the_newer(draw, tmp_path):
    """As by ``kill -9``, at ten moments of saves without end; and before each file takes its place."""
    folder, symbol = tmp_path / "set", dense(DATA, hidden=40_000)
    folder.mkdir()
    prefix = str(folder / "net")

    def save(value=0):
        save_checkpoint(prefix, 0, symbol, {"fc_weight": mx.nd.full((40_000, 6), value)}, {})

    def assert_whole():
        arrays, _ = load_params(f"{prefix}-0000.params")
        assert len(np.unique(arrays["fc_weight"].asnumpy())) == 1
        try:
            assert text(load_checkpoint(prefix, 0).symbol) == text(symbol)
        except CheckpointError as e:  # it was killed among the renames
            assert "not saved together" in str(e)

    save()
    with open(f"{prefix}-0000.params", "rb") as older:  # is another file than the newer: no kill leaves a part of that
        before = older.read()
        save(1)
        older.seek(0)
        assert older.read() == before
    for _ in range(10):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12, of threads; MXNet stops its own
            child = os.fork()
        if not child:
            try:
                for value in itertools.count(1):
                    save(value)
            finally:
                os._exit(1)
        time.sleep(draw.uniform(0.0, 0.1))  # the moment is what is drawn
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert_whole()
    for _ in killed_at_each_rename(save, str(folder)):
        assert_whole()
