from __future__ import annotations

import os
import pickle

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp.arrays import leaves
from mxmp.errors import StateError
from mxmp.optimizer import MultiPrecision
from mxmp.train import state_files
from mxmp.train.masters import MasterState
from tests.gluon.trainer_tools import param, sgd

OPTIMIZERS = {
    "sgd": {"momentum": 0.9},
    "adam": {},
    "plain sgd": {},
    "schedule": {"momentum": 0.9, "lr_scheduler": None},
}
KEEP_THE_MASTER_FIRST = {"adagrad": {}, "signum": {"momentum": 0.9}, "lbsgd": {"momentum": 0.9}}
KEEP_IT_LAST = {"nag": {"momentum": 0.9}, "lars": {"momentum": 0.9}}
OPTIMIZERS.update({**KEEP_THE_MASTER_FIRST, **KEEP_IT_LAST})
VALUES = [0.1, -0.7, 2.0]


def options_of(name):
    options = {"learning_rate": 0.1, **OPTIMIZERS[name]}
    if "lr_scheduler" in options:
        options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(2, 0.7, base_lr=0.1)
    return (name if name in mx.optimizer.Optimizer.opt_registry else "sgd"), options


def run(trainer, w, steps):
    """Take steps as any trainer does, with float32 gradients of different sizes."""
    for number in steps:
        with mx.autograd.record():
            loss = (w.data() * (number + 1)).sum()
        if isinstance(trainer, mxmp.gluon.Trainer):
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
        else:
            loss.backward()
        trainer.step(2)


@pytest.mark.parametrize("how", ["save_states", "get_states"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_that_a_trainer_of_mxnet_wrote_go_on_bit_for_bit(name, how, tmp_path):
    fname, made = str(tmp_path / "states"), []
    w = param(VALUES)
    plain = mx.gluon.Trainer([w], *options_of(name), kvstore=None)
    run(plain, w, range(3))
    if how == "save_states":
        plain.save_states(fname)
    else:
        (tmp_path / "states").write_bytes(plain._updaters[0].get_states(dump_optimizer=False))
    other = param(w.data().asnumpy())
    trainer = mxmp.gluon.Trainer([other], *options_of(name), kvstore=None, loss_scale=None)
    trainer.load_states(fname)
    if how == "save_states":
        assert trainer.optimizer.num_update == 3
    else:
        plain._optimizer.num_update, plain._optimizer._index_update_count[0] = 0, 0  # which a file of states lacks
        plain._optimizer.lr = trainer.optimizer.lr
    if how == "save_states" or name != "schedule":
        for each, weight in ((plain, w), (trainer, other)):
            run(each, weight, range(3, 6))
            made.append(weight.data().asnumpy().tolist())
        assert made[0] == made[1]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam", "plain sgd", *KEEP_THE_MASTER_FIRST, *KEEP_IT_LAST])
def test_masters_that_a_trainer_of_mxnet_kept_are_taken_over(name, wrapped, tmp_path):
    """Those of its own ``multi_precision``, and of a `MultiPrecision` that it was given."""
    fname, made = str(tmp_path / "states"), []
    w = param(VALUES, "float16")
    kind, options = options_of(name)
    plain = mx.gluon.Trainer([w], kind, {**options, "multi_precision": True}, kvstore=None)
    if wrapped:
        plain = mx.gluon.Trainer([w], MultiPrecision(mx.optimizer.create(kind, **options)), kvstore=None)
    run(plain, w, range(3))
    plain.save_states(fname)
    other = param(w.data().asnumpy(), "float16")
    trainer = mxmp.gluon.Trainer([other], kind, options, kvstore=None, loss_scale=None)
    trainer.load_states(fname)
    for each, weight in ((plain, w), (trainer, other)):
        run(each, weight, range(3, 6))
        made.append(weight.data().asnumpy().tolist())
    assert made[0] == made[1]


@pytest.mark.filterwarnings("ignore:Accumulating with float16:UserWarning")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_states_that_a_trainer_of_mxnet_kept_in_float16_are_widened(name, dtype, tmp_path):
    w, kept = param(VALUES, "float16"), []
    plain = mx.gluon.Trainer([w], *options_of(name), kvstore=None)
    run(plain, w, range(3))
    plain.save_states(str(tmp_path / "states"))
    other = param(VALUES, dtype)
    trainer = mxmp.gluon.Trainer([other], *options_of(name), kvstore=None, loss_scale=None)
    trainer.load_states(str(tmp_path / "states"))
    for trainer_ in (plain, trainer):
        state = trainer_._updaters[0].states[0]
        kept.append(list(leaves(state.inner if isinstance(state, MasterState) else state)))
    assert {array.dtype for array in kept[1]} == {np.float32}
    assert [array.asnumpy().tolist() for array in kept[0]] == [array.asnumpy().tolist() for array in kept[1]]
    run(trainer, other, [3])


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("policies", [("O1", "O2"), ("O2", "O1"), ("float32", "O2"), ("O2", "float32")], ids="->".join)
def test_a_run_goes_on_under_another_policy(policies, kind, tmp_path):
    """Its float32 values, in the parameters' file, and its states are those that it had."""
    files = str(tmp_path / "net"), str(tmp_path / "states")
    x, found = mx.nd.array(np.random.RandomState(0).randn(8, 6)), []
    for number, policy in enumerate(policies):
        net = mx.gluon.nn.Dense(4, in_units=6)
        net.initialize(mx.init.Xavier())
        if number:
            net.load_parameters(files[0])
        mxmp.gluon.convert(net, policy)
        net(x)
        trainer = mxmp.gluon.Trainer(net.collect_params(), kind, {"learning_rate": 0.01}, loss_scale=None)
        if number:
            trainer.load_states(files[1])
        for _ in range(3):
            with mx.autograd.record():
                loss = net(x).square().mean()
            loss.backward()
            trainer.step(1)
            if not number:
                net.save_parameters(files[0])
                trainer.save_states(files[1])
        updater = trainer._updaters[0]
        found.append((updater.optimizer.num_update, net.weight.dtype, updater.states[0]))
    assert found[1][0] == 6  # three and three
    low = ["O2" == policy for policy in policies]
    assert [isinstance(state, MasterState) for _, _, state in found] == low


class Hostile:
    """Runs a command where it is unpickled without a list of classes."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("nested", [False, True])
def test_a_hostile_pickle_is_refused_and_nothing_of_it_is_run(nested, tmp_path):
    fname, touched = tmp_path / "states", tmp_path / "touched"
    content = Hostile(touched)
    fname.write_bytes(pickle.dumps({0: (mx.nd.ones((1,)), content)} if nested else content))
    with pytest.raises(StateError, match=f"{fname}: not a file of optimizer states.*system"):
        sgd(param([1.0])).load_states(str(fname))
    assert not touched.exists()
    assert pickle.loads(fname.read_bytes()) is not None and touched.exists()  # it would have run


def global_of(module, name, rest=b"."):
    """Return a pickle that names something, and goes on with it."""
    return b"\x80\x04c" + f"{module}\n{name}\n".encode() + rest


class Made:
    """Is pickled as any call, and a state for what that made."""

    def __init__(self, *made):
        self.made = made

    def __reduce__(self):
        return self.made


def rows_at(row, kind=mx.nd.sparse.RowSparseNDArray):
    """Return a pickle of one row of a (4, 3) array, anywhere in it or beyond."""
    array = mx.nd.sparse.row_sparse_array((np.ones((1, 3), np.float32), np.array([2], np.int64)), shape=(4, 3))
    data = bytes(array.__getstate__()["handle"])
    assert data.endswith(np.int64(2).tobytes())
    return pickle.dumps({0: Made(kind, (None,), {"handle": bytearray(data[:-8] + np.int64(row).tobytes())})})


def scalar_of(name, *state):
    """Return a pickle of eight bytes as a number of a dtype: of objects they are a pointer."""
    return pickle.dumps({0: Made(np.float32(0).__reduce__()[0], (Made(np.dtype, (name, False, True), *state), b"A" * 8))})


SGD, SCHEDULER = ("mxnet.optimizer.optimizer", "SGD"), ("mxnet.lr_scheduler", "LRScheduler")
UNREAD = {
    "a function": (global_of("builtins", "eval"), "it holds a builtins.eval"),
    "a prefix": (global_of(SGD[0], "SGDEvil"), f"it holds a {SGD[0]}.SGDEvil"),
    "a method": (global_of(SGD[0], "SGD.update"), f"it holds a {SGD[0]}.SGD.update"),
    "a class": (global_of(*SGD), "its states hold a type"),
    # BUILD with (None, {name: value}) sets attributes of whatever is there, a class too.
    "an attribute": (global_of(*SCHEDULER, pickle.dumps((None, {"a": 1}), 2)[2:-1] + b"b."), "its states hold a type"),
    "an updater": (global_of(SGD[0], "Updater"), f"it holds a {SGD[0]}.Updater"),
    "no optimizer": (pickle.dumps(({}, {"lr": 1})), "its second part is a dict, no optimizer"),
    "three parts": (pickle.dumps(({}, 1, 2)), "too many values"),
    "a bare optimizer": (global_of(*SGD, b")\x81\x86.").replace(b"\x04", b"\x04}"), "no attribute"),
    "cut off": (pickle.dumps({0: mx.nd.ones((3,))})[:-30], ""),
    "a pointer": (scalar_of("O", (3, "|", None, None, None, -1, -1, 0)), "it holds the dtype O"),
    "a field": (scalar_of("f8", (3, "<", None, ("a",), {"a": 1}, 8, 1, 0)), "a dtype that is no plain number's"),
    "a row beyond": (rows_at(2**40), "rows that are not its own"),
    "a row below 0": (rows_at(-5), "rows that are not its own"),
    "rows as dense": (rows_at(2, mx.nd.NDArray), "a row_sparse array as a NDArray"),
    "no content": (pickle.dumps({0: Made(mx.nd.NDArray, (None,))}), "an array without content"),
    "a dtype": (pickle.dumps({0: np.dtype("float32")}), "its states hold a"),
}


def test_numbers_and_rows_of_a_pickle_are_read(tmp_path):
    (tmp_path / "states").write_bytes(pickle.dumps({0: [np.float32(0.5), np.int64(-3)]}))
    assert state_files.read(tmp_path / "states") == {"states": [{0: [0.5, -3]}]}
    (tmp_path / "states").write_bytes(rows_at(3))
    assert state_files.read(tmp_path / "states")["states"][0][0].indices.asscalar() == 3


@pytest.mark.parametrize("content, message", UNREAD.values(), ids=UNREAD)
def test_a_pickle_of_anything_else_is_refused(content, message, tmp_path):
    (tmp_path / "states").write_bytes(content)
    before = dict(vars(mx.lr_scheduler.LRScheduler))
    with pytest.raises(StateError, match=f"{tmp_path}/states: not a file of optimizer states.*({message})"):
        sgd(param([1.0])).load_states(str(tmp_path / "states"))
    assert dict(vars(mx.lr_scheduler.LRScheduler)) == before
