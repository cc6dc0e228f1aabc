"""The messages of steps and of files of states, where nothing else is to be seen."""

import mxnet as mx
import numpy as np

from mxmp.errors import CheckpointError, StateError, TrainerError
from mxmp.train.step import Observer
from tests import messages
from tests.gluon.trainer_tools import backward, param, sgd


def load(file):
    sgd(param([1.0])).load_states(file)


def other_file(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    load(str(tmp_path / "other.npz"))


def save_state(state):
    """Save a trainer whose optimizer has a state of a kind of its own."""

    def save(tmp_path):
        w = param([1.0])
        trainer = sgd(w, loss_scale=None)
        backward(trainer, w, 1)
        trainer.step(1)
        trainer._updaters[0].states[0] = state
        try:
            trainer.save_states(str(tmp_path / "s"))
        finally:
            assert list(tmp_path.iterdir()) == []

    return save


TABLE = {
    "another file": (other_file, StateError,
        ".../other.npz: not a file of optimizer states, or damaged ('header'); expected one that save_states "
        "of mxmp or of MXNet wrote."),
    "no file": (lambda tmp_path: load(str(tmp_path / "none")), FileNotFoundError, ".../none: there is no such file."),
    "a folder": (lambda tmp_path: load(str(tmp_path)), CheckpointError, "...: it is a folder, not a file."),
    "load of None": (lambda: load(None), CheckpointError, "fname is None; expected the path of a file."),
    "load of a number": (lambda: load(3), CheckpointError, "fname is 3; expected the path of a file."),
    "save to None": (lambda: sgd(param([1.0])).save_states(None), CheckpointError,
        "fname is None; expected the path of a file."),
    "save to a number": (lambda: sgd(param([1.0])).save_states(3), CheckpointError,
        "fname is 3; expected the path of a file."),
    "a function": (save_state({"f": max}), StateError,
        "the states of SGD hold a builtin_function_or_method, which a state file cannot; expected arrays, "
        "numbers, lists, tuples and dicts."),
    "a csr array": (save_state([mx.nd.ones((2, 2)).tostype("csr")]), StateError,
        "the states of SGD hold a CSRNDArray, which a state file cannot; expected arrays, numbers, lists, "
        "tuples and dicts."),
    "a set": (save_state(({1, 2},)), StateError,
        "the states of SGD hold a set, which a state file cannot; expected arrays, numbers, lists, tuples and "
        "dicts."),
    "an observer of an optimizer": (
        lambda: Observer().attach(mx.optimizer.SGD()), TrainerError,
        "expected a trainer, a module or a LossScaleOptimizer of mxmp, found a SGD of "
        "mxnet.optimizer.optimizer; mxmp.gluon.Trainer.adopt makes a trainer of MXNet one of mxmp."),
}  # fmt: skip


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
