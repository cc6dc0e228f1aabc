"""States that a trainer of MXNet or one of another policy wrote, and pickles that are refused."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp.errors import StateError, TrainerError
from mxmp.gluon import Trainer, convert, exact_value, load_checkpoint, save_checkpoint
from mxmp.optimizer import MultiPrecision
from tests.freeze import freeze
from tests.gluon.trainer_tools import param, run, run_backward, sgd

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


def steps(trainer, w, numbers):
    """Take steps as any trainer does, with gradients of different sizes; return the weight."""
    for number in numbers:
        run(trainer, w, number + 1)
    return freeze(w.data())


def resumed(plain, w, tmp_path, *args, dtype="float32"):
    """Return a parameter with the value of one that a trainer of MXNet trains, and a trainer that loads its states."""
    steps(plain, w, range(3))
    plain.save_states(str(tmp_path / "states"))
    other = param(w.data().asnumpy(), dtype)
    trainer = Trainer([other], *args, kvstore=None, loss_scale=None)
    trainer.load_states(str(tmp_path / "states"))
    return trainer, other


def leaves(state):
    return [leaf for each in state for leaf in leaves(each)] if isinstance(state, tuple) else [state]


def states_of(trainer):
    return leaves(trainer._updaters[0].states[0])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_that_a_trainer_of_mxnet_wrote_go_on_bit_for_bit(name, tmp_path):
    w = param(VALUES)
    plain = gluon.Trainer([w], *options_of(name), kvstore=None)
    trainer, other = resumed(plain, w, tmp_path, *options_of(name))
    assert trainer.optimizer.num_update == 3 and steps(trainer, other, range(3, 6)) == steps(plain, w, range(3, 6))


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam", *KEEP_THE_MASTER_FIRST, *KEEP_IT_LAST])
def test_masters_that_a_trainer_of_mxnet_kept_are_taken_over(name, wrapped, tmp_path):
    """Those of its own ``multi_precision``, and of a `MultiPrecision` that it was given."""
    kind, options = options_of(name)
    w = param(VALUES, "float16")
    if wrapped:
        plain = gluon.Trainer([w], MultiPrecision(mx.optimizer.create(kind, **options)), kvstore=None)
    else:
        plain = gluon.Trainer([w], kind, {**options, "multi_precision": True}, kvstore=None)
    trainer, other = resumed(plain, w, tmp_path, kind, options, dtype="float16")
    assert steps(trainer, other, range(3, 6)) == steps(plain, w, range(3, 6))


@pytest.mark.filterwarnings("ignore:Accumulating with float16:UserWarning")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_states_that_a_trainer_of_mxnet_kept_in_float16_are_widened(name, dtype, tmp_path):
    w = param(VALUES, "float16")
    plain = gluon.Trainer([w], *options_of(name), kvstore=None)
    trainer, other = resumed(plain, w, tmp_path, *options_of(name), dtype=dtype)
    assert freeze(states_of(trainer)) == freeze([array.astype("float32") for array in states_of(plain)])
    run(trainer, other)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("policies", [("O1", "O2"), ("O2", "O1"), ("float32", "O2"), ("O2", "float32")], ids="->".join)
def test_a_run_goes_on_under_another_policy(policies, kind, tmp_path):
    """Its float32 values, in the parameters' file, and its states are those that it had."""
    net_file, states_file, found = str(tmp_path / "net"), str(tmp_path / "states"), []
    x = mx.nd.array(np.random.RandomState(0).randn(8, 6))
    for number, policy in enumerate(policies):
        net = gluon.nn.Dense(4, in_units=6)
        net.initialize(mx.init.Xavier())
        if number:
            net.load_parameters(net_file)
        trainer = Trainer(convert(net, policy), kind, {"learning_rate": 0.01}, loss_scale=None)
        for step in range(3):
            if number and step == 0:
                trainer.load_states(states_file)
                found.append(freeze([exact_value(net.weight), *states_of(trainer)]))
            with mx.autograd.record():
                loss = net(x).square().mean()
            run_backward(trainer, loss)
            assert trainer.step(1)
        found.append(freeze([exact_value(net.weight), *states_of(trainer)]))
        assert bool(trainer._training_step.masters[0].arrays) == (policy == "O2")
        net.save_parameters(net_file)
        trainer.save_states(states_file)
    assert found[0] == found[1] != found[2] and trainer.optimizer.num_update == 6


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
CALL = Made(os.system, ("touch made",))
UNREAD = {
    "a call": (pickle.dumps(CALL), "it holds a posix.system"),
    "a call within": (pickle.dumps({0: (mx.nd.ones((1,)), CALL)}), "it holds a posix.system"),
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
    "a row beyond": (rows_at(2**40), "an array: .* indices that are not places in an array of the shape"),
    "a row below 0": (rows_at(-5), "an array: .* indices that are not places in an array of the shape"),
    "rows as dense": (rows_at(2, mx.nd.NDArray), "a row_sparse array as an NDArray"),
    "no content": (pickle.dumps({0: Made(mx.nd.NDArray, (None,))}), "an array without content"),
    "a dtype": (pickle.dumps({0: np.dtype("float32")}), "its states hold a"),
}


def test_numbers_and_rows_of_a_pickle_are_read(tmp_path):
    file, trainer = tmp_path / "states", Trainer([param(np.ones((4, 3)))], "sgd", loss_scale=None)
    file.write_bytes(pickle.dumps({0: [np.float32(0.5), np.int64(-3)]}))
    trainer.load_states(str(file))
    assert trainer._updaters[0].states == {0: [0.5, -3]}
    file.write_bytes(rows_at(3))
    trainer.load_states(str(file))
    assert trainer._updaters[0].states[0].indices.asscalar() == 3


@pytest.mark.parametrize("content, message", UNREAD.values(), ids=UNREAD)
def test_a_pickle_of_anything_else_is_refused_and_nothing_of_it_is_run(content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "states").write_bytes(content)
    before = dict(vars(mx.lr_scheduler.LRScheduler))
    with pytest.raises(StateError, match=f"{tmp_path}/states: not a file of optimizer states.*({message})"):
        sgd(param([1.0])).load_states(str(tmp_path / "states"))
    assert dict(vars(mx.lr_scheduler.LRScheduler)) == before and os.listdir(tmp_path) == ["states"]


# ---------------------------------------------------------------------- small files that would fill the memory or take for ever


def nested(kind, depth=40):
    """Return a value that holds itself, so to say, 2**depth times."""
    value = kind([1, 2])
    for _ in range(depth):
        value = kind([value, value])
    return value


def declaring(size):
    """Return a pickle of an array whose record declares a size."""
    data = bytes(mx.nd.ones((3,)).__getstate__()["handle"])
    assert data.count(np.int64(3).tobytes()) == 1
    data = data.replace(np.int64(3).tobytes(), np.int64(size).tobytes())
    return pickle.dumps({0: Made(mx.nd.NDArray, (None,), {"handle": bytearray(data)})})


def keyed(noted, doubled):
    """Return a pickle of a dict whose key is a tuple of tuples: each is noted in the memo, and holds the one before."""
    steps = [doubled % number if b"%" in doubled else doubled for number in range(40)]
    return b"\x80\x04}K\x01K\x01\x86" + noted + b"".join(step + noted for step in steps) + b"K\x01s."


def many_buffers(count, size):
    """Return a pickle of buffers of the same bytes."""
    data = b"a" * size
    return pickle.dumps([Made(bytearray, (data,)) for _ in range(count)])


def many_arrays(count, size):
    """Return a pickle of arrays of one buffer."""
    handle = mx.nd.ones((size,)).__getstate__()
    return pickle.dumps([Made(mx.nd.NDArray, (None,), handle) for _ in range(count)])


BOMBS = {
    "lists within lists": pickle.dumps({0: nested(list)}),
    "tuples within tuples": pickle.dumps({0: nested(tuple)}),
    "a key of tuples": keyed(b"\x94", b"h%c\x86"),
    "a key of tuples that are duplicated": keyed(b"", b"2\x86"),
    "a list within itself": b"\x80\x04]\x94h\x00a.",
    "deep lists": b"\x80\x04" + b"]" * 800 + b"a" * 799 + b".",
    "a length": pickle.dumps({0: Made(bytearray, (10**9,))}),
    "one buffer often": many_buffers(20_000, 100_000),
    "one array often": many_arrays(20_000, 100_000),
    "a size": declaring(2**40),
    "a size below 0": declaring(-3),
    "a huge number": pickle.dumps({0: 1 << 100_000}),
}
LOADS = """
import resource, signal, sys
import mxmp, mxnet as mx
from mxmp.errors import StateError

w = mx.gluon.Parameter("w", shape=(1,))
w.initialize()
trainer = mxmp.gluon.Trainer([w], "sgd")
signal.alarm(60)
with open("/proc/self/statm") as stream:
    size = int(stream.read().split()[0]) * 4096 + (1 << 29)
resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
for fname in sys.argv[1:]:
    try:
        trainer.load_states(fname)
    except StateError as e:
        assert str(e).startswith(fname) and len(str(e)) < 600 and "MemoryError" not in repr(e.__cause__), repr(e)
        print("refused")
"""


def test_small_files_that_would_fill_the_memory_or_take_for_ever_are_refused(tmp_path):
    files = [tmp_path / str(number) for number in range(len(BOMBS))]
    for file, content in zip(files, BOMBS.values()):
        file.write_bytes(content)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LOADS, *map(str, files)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.split() == ["refused"] * len(BOMBS)


def unshaped(policy=None):
    """Return a net whose parameters get their shapes at its first call, and its trainer."""
    net = gluon.nn.Dense(2, prefix="dense_")
    net.initialize()
    if policy is not None:
        convert(net, policy)
    return net, Trainer(net, "sgd", {"momentum": 0.9}, loss_scale=8)


@pytest.mark.parametrize("call", ["save_states", "load_states"])
def test_states_of_parameters_without_shapes_are_refused_with_what_to_do(call, tmp_path):
    net, trainer = unshaped()
    with pytest.raises(TrainerError, match=f"^{call}: parameter 'dense_weight' has no value yet: .* Call the net once"):
        getattr(trainer, call)(str(tmp_path / "states"))
    net(mx.nd.ones((1, 3)))
    trainer.save_states(str(tmp_path / "states"))


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_checkpoint_gives_parameters_their_shapes_and_then_their_states(policy, tmp_path):
    net, trainer = unshaped(policy)
    net(mx.nd.ones((1, 3)))
    save_checkpoint(str(tmp_path / "net"), 1, net, trainer)
    resumed, loaded = unshaped(policy)
    load_checkpoint(str(tmp_path / "net"), 1, resumed, loaded)
    assert freeze(exact_value(resumed.weight)) == freeze(exact_value(net.weight))
