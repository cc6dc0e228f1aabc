from __future__ import annotations

import json
import os
import random
import stat
import zipfile
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp.dtypes import NUMPY_BFLOAT16
from mxmp.errors import StateError
from mxmp.loss_scale import DynamicLossScale, parse
from mxmp.train import states as state_file
from mxmp.train.masters import MasterState
from mxmp.train.states import StateFile
from tests.gluon.trainer_tools import DTYPES, backward, param, snapshot
from tests.train.state_files import edit_states, read_states


def round_trip(value, tmp_path):
    arrays = {}
    data = state_file.encode(value, arrays)
    fname = str(tmp_path / "value")
    state_file.write(fname, {"value": data}, arrays)
    file = StateFile(fname)
    return file.decode("value", file.header["value"], mx.cpu(1))


def bits(array):
    return array.asnumpy().tobytes()


PLAIN = [None, True, 3, 0.1, float("inf"), np.float32(0.1), "text", {}, ()]
NESTED = [[1, [2.5, None]], (1, ("a", False)), {1: {"a": (2, [3])}, "b": 1e-300}]


@pytest.mark.parametrize("value", PLAIN + NESTED, ids=repr)
def test_plain_values_survive_a_file(value, tmp_path):
    found = round_trip(value, tmp_path)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("dtype", [*DTYPES, "float64", "int32", "int64", "uint8", "int8"])
def test_arrays_survive_a_file_bit_for_bit(dtype, tmp_path):
    array = mx.nd.amp_cast(mx.nd.array([[1.5, -2.25, 3e-5]]), dtype=NUMPY_BFLOAT16)
    if dtype != "bfloat16":
        array = mx.nd.array([[1.5, 2.25, 3e-5]]).astype(dtype)
    found = round_trip(array, tmp_path)
    assert (found.dtype, found.shape, found.ctx) == (array.dtype, (1, 3), mx.cpu(1))
    assert bits(found) == bits(array)


def test_row_sparse_arrays_survive_a_file(tmp_path):
    rows = mx.nd.sparse.row_sparse_array(([[1.0, 2.0], [3.0, 4.0]], [0, 3]), shape=(6, 2))
    found = round_trip(rows, tmp_path)
    assert found.stype == "row_sparse"
    assert found.indices.asnumpy().tolist() == [0, 3]
    np.testing.assert_array_equal(found.asnumpy(), rows.asnumpy())


def test_master_states_survive_a_file(tmp_path):
    found = round_trip(MasterState(mx.nd.ones((2,)), (mx.nd.zeros((2,)), None)), tmp_path)
    assert isinstance(found, MasterState)
    assert found.master.asnumpy().tolist() == [1, 1]
    assert found.inner[1] is None


def test_encode_refuses_what_a_file_cannot_hold():
    with pytest.raises(state_file.CannotEncodeError, match="function"):
        state_file.encode({"a": [lambda: 0]}, {})


def test_nothing_in_a_file_is_pickled(tmp_path):
    fname = str(tmp_path / "value")
    state_file.write(fname, {"a": 1}, {"x": np.ones(2)})
    with np.load(fname, allow_pickle=False) as file:
        assert json.loads(str(file["header"])) == {"a": 1}
        assert file["x"].tolist() == [1, 1]


def test_write_keeps_the_old_file_when_it_fails(tmp_path, monkeypatch):
    fname = str(tmp_path / "value")
    state_file.write(fname, {"a": 1}, {})

    def fail(file, array, **options):
        file.write(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(OSError, match="no space left"):
        state_file.write(fname, {"a": 2}, {})
    assert StateFile(fname).header == {"a": 1}
    assert os.listdir(tmp_path) == ["value"]


def test_write_obeys_the_umask(tmp_path):
    fname = str(tmp_path / "value")
    before = os.umask(0o022)
    try:
        state_file.write(fname, {}, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(fname).st_mode) == 0o644


class Run:
    """A trainer of parameters, which each context updates by itself."""

    def __init__(self, optimizer="adam", dtypes=DTYPES, contexts=1, masters=True, shape=(3, 2), **options):
        self.contexts = [mx.cpu(i) for i in range(contexts)]
        self.params = [param(np.ones(shape), t, ctx=self.contexts, name=f"p{i}") for i, t in enumerate(dtypes)]
        options["multi_precision"] = masters
        self.trainer = mxmp.gluon.Trainer(self.params, optimizer, options, kvstore=None, loss_scale=None)
        self.save, self.load = self.trainer.save_states, self.trainer.load_states

    def step(self, number, contexts=None):
        for ctx in self.contexts[:contexts]:
            backward(self.trainer, self.params, 0.01 * (number + 1), ctx)
        self.trainer.step(1, ignore_stale_grad=contexts is not None)

    def everything(self):
        return snapshot(self.trainer)

    def copy_weights(self, other):
        for mine, theirs in zip(self.params, other.params):
            for a, b in zip(mine.list_data(), theirs.list_data()):
                b.copyto(a)


def scheduler():
    return mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.1)


EXACT = {
    "sgd": {"momentum": 0.9, "lr_scheduler": scheduler, "learning_rate": 0.1},
    "adam": {"lr_scheduler": scheduler, "learning_rate": 0.1},
    "nadam": {},  # keeps m_schedule on itself
    "lars": {"momentum": 0.9},  # keeps last_lr and cur_lr on itself
    "lbsgd": {"momentum": 0.9, "batch_scale": 2},  # keeps gradients on itself
    "lamb": {},
    "rmsprop": {"centered": True},
}


def options(name):
    return {key: value() if callable(value) else value for key, value in EXACT[name].items()}


@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("name", EXACT)
def test_a_resumed_run_is_bit_identical(name, contexts, tmp_path):
    whole = Run(name, contexts=contexts, **options(name))
    for number in range(3):
        whole.step(number)
    fname = str(tmp_path / "states")
    whole.save(fname)

    resumed = Run(name, contexts=contexts, **options(name))
    resumed.copy_weights(whole)
    resumed.load(fname)
    assert resumed.everything() == whole.everything()

    for number in range(3, 8):
        whole.step(number)
        resumed.step(number)
    assert resumed.everything() == whole.everything()


def test_a_file_decides_over_hyperparameters(tmp_path):
    saved, other = Run("sgd", momentum=0.9, wd=0.5), Run("sgd", momentum=0.1)
    saved.step(0)
    saved.trainer.set_learning_rate(0.125)
    saved.save(str(tmp_path / "s"))
    other.load(str(tmp_path / "s"))
    inner = other.trainer.optimizer.inner
    assert (inner.momentum, inner.wd, inner.lr) == (0.9, 0.5, 0.125)


def test_states_alike_on_all_contexts_are_stored_once_and_fit_any_number(tmp_path):
    fname = str(tmp_path / "s")
    two, three = Run(contexts=2), Run(contexts=3)
    two.step(0)
    two.save(fname)
    assert len(StateFile(fname).header["states"]) == 1
    three.load(fname)
    for k, updater in enumerate(three.trainer._updaters):
        assert updater.states[0][0].ctx == mx.cpu(k)
    counts = three.trainer.optimizer._all_index_update_counts
    assert counts == {k: {0: 1, 1: 1, 2: 1} for k in range(3)}
    assert counts[0] is not counts[1]
    assert three.trainer.optimizer._index_update_count is counts[0]


def test_states_that_differ_are_stored_for_each_context(tmp_path):
    fname = str(tmp_path / "s")
    two = Run(contexts=2)
    two.step(0)
    two.step(1, contexts=1)
    two.save(fname)
    resumed = Run(contexts=2)
    resumed.copy_weights(two)
    resumed.load(fname)
    assert resumed.everything() == two.everything()
    with pytest.raises(StateError, match="the number of contexts with states of their own is 2; expected 1"):
        Run(contexts=1).load(fname)


def test_fields_that_a_file_cannot_hold_stay(tmp_path):
    class Custom(mx.optimizer.SGD):
        def __init__(self, hook, **kwargs):
            super().__init__(**kwargs)
            self.hook = hook

    one, two = Run(Custom(max, momentum=0.5)), Run(Custom(min, momentum=0.5))
    one.save(str(tmp_path / "s"))
    two.load(str(tmp_path / "s"))
    assert two.trainer.optimizer.inner.hook is min


def test_states_that_a_file_cannot_hold_are_an_error(tmp_path):
    run = Run("sgd")
    run.step(0)
    run.trainer._updaters[0].states[1] = {"f": max}
    with pytest.raises(StateError, match="states of SGD hold a builtin_function_or_method"):
        run.save(str(tmp_path / "s"))
    assert os.listdir(tmp_path) == []


def test_a_parameter_of_unknown_shape_takes_the_files(tmp_path):
    fname, saved, fresh = str(tmp_path / "s"), Run(dtypes=["float16"]), Run(dtypes=["float16"])
    saved.step(0)
    saved.save(fname)
    fresh.params[0] = mx.gluon.Parameter("late", shape=(0, 2), dtype="float16", allow_deferred_init=True)
    fresh.load(fname)
    assert fresh.trainer._updaters[0].states[0].master.shape == (3, 2)


# Everything that does not fit is an error that names file and field, and changes nothing.


def edited(fname, **changes):
    """Rewrite a state file with other header fields."""
    edit_states(
        fname, lambda header: header.update({k: v(header[k]) if callable(v) else v for k, v in changes.items()})
    )


def expect_refusal(fname, target_run, message):
    before = target_run.everything()
    with pytest.raises(StateError, match=message) as caught:
        target_run.load(fname)
    assert str(caught.value).startswith(fname) and len(str(caught.value)) < 1000
    assert target_run.everything() == before


@pytest.fixture
def saved_file(tmp_path):
    run = Run()
    run.step(0)
    fname = str(tmp_path / "s")
    run.save(fname)
    return fname


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"optimizer": "sgd"}, "the optimizer is Adam; expected SGD, as in this trainer"),
        ({"lr_scheduler": scheduler()}, "lr_scheduler is None; expected FactorScheduler"),
        ({"dtypes": DTYPES[:2]}, "the number of parameters is 3; expected 2"),
        ({"shape": (2, 3)}, r"the shape of parameter .* is \[3, 2\]; expected \[2, 3\]"),
    ],
)
def test_load_refuses_the_states_of_another_trainer(saved_file, other, message):
    expect_refusal(saved_file, Run(**other), message)


def drop_last_count(counts):
    return [[counts[0][0], [[0]]]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "else"}, "format is 'else'; expected 'mxmp-optimizer-states'"),
        ({"version": 99}, "version is 99; expected 1; it comes from another mxmp"),
        ({"version": "1"}, "version is '1'; expected a int"),
        ({"states": None}, "states is None; expected a list"),
        ({"num_update": -1}, "counts is .* expected whole numbers"),
        ({"num_update": True}, "num_update is True"),
        ({"counts": drop_last_count}, "counts is .*; expected update counts per device"),
        ({"counts": [[0, [[0, 1.5]]]]}, "counts is .*; expected whole numbers"),
        ({"fields": {"volume": 11}}, "fields.volume is 11; expected absent: Adam has no such field"),
        ({"fields": {"beta1": "much"}}, "fields.beta1 is 'much'; expected the like of 0.9"),
        ({"fields": {"param_dict": 1}}, "fields.param_dict"),
        ({"states": [{"what": []}]}, r"states\[0\] is malformed"),
        ({"states": [7]}, r"states\[0\] is int; expected a dict"),
        ({"states": [{"dict": [[9, None]]}]}, r"states\[0\]\[9\] is of no parameter; expected an index from 0 to 2"),
        ({"states": [{"dict": [[0, {"array": ["gone", "float32", [3, 2]]}]]}]}, "is missing; expected float32"),
        (
            {"states": [{"dict": [[0, {"array": ["states0.0", "float32", [2, 3]]}]]}]},
            r"is float32 \(3, 2\); expected float32 \(2, 3\)",
        ),
        (
            {"params": lambda params: [{**params[0], "dtype": "int8"}, *params[1:]]},
            "the dtype of parameter .* is int8; expected float32",
        ),
    ],
)
def test_load_refuses_a_header_that_was_edited(saved_file, changes, message):
    edited(saved_file, **changes)
    expect_refusal(saved_file, Run(), message)


def test_load_refuses_a_master_of_the_wrong_shape(saved_file):
    wrong = {"array": ["fields.0", "float32", [1]]}
    edited(saved_file, states=[{"dict": [[1, {"master": [wrong, None]}]]}])
    edit_states(saved_file, lambda header: None, {"fields.0": np.ones(1, np.float32)})
    expect_refusal(saved_file, Run(), r"states\[0\]\[1\].master is float32 \(1,\); expected float32 \(3, 2\)")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-40],
        lambda data: data[:26] + b"\xff\x0f" + data[28:],  # the length of the first name: the error quotes the file
        lambda data: b"",
        lambda data: b"not a zip file at all",
        lambda data: b"\x80\x04" + data,  # looks like a pickle
        # A checksum no longer fits; numpy stores text as UTF-32.
        lambda data: data.replace("mxmp".encode("utf-32-le"), "mxmq".encode("utf-32-le")),
    ],
    ids=["half", "tail", "name", "empty", "text", "pickle", "flipped"],
)
def test_load_refuses_a_damaged_file(saved_file, damage):
    with open(saved_file, "rb") as file:
        data = file.read()
    assert damage(data) != data
    with open(saved_file, "wb") as file:
        file.write(damage(data))
    expect_refusal(saved_file, Run(), "not a file of optimizer states, or damaged")


def test_load_refuses_another_npz_file(tmp_path):
    fname = str(tmp_path / "other.npz")
    np.savez(fname, x=np.ones(3))
    expect_refusal(fname, Run(), "the header is missing or no JSON")


def test_load_of_a_missing_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        Run().load(str(tmp_path / "none"))


@pytest.mark.parametrize("saved", [DynamicLossScale(init_scale=2.0**10, growth_interval=7), 128, None], ids=str)
def test_a_file_replaces_a_loss_scale_that_was_not_given_without_a_word(saved, tmp_path, caplog):
    x = mx.gluon.Parameter("x", shape=(2,))
    x.initialize()
    file = str(tmp_path / "t.states")
    mxmp.gluon.Trainer([x], "sgd", kvstore=None, loss_scale=saved).save_states(file)
    trainer = mxmp.gluon.Trainer([x], "sgd", kvstore=None)
    trainer.load_states(file)
    assert trainer.loss_scale == parse(saved)
    assert caplog.text == ""
    trainer = mxmp.gluon.Trainer([x], "sgd", kvstore=None, loss_scale=DynamicLossScale(init_scale=64))
    trainer.load_states(file)
    assert trainer.loss_scale == parse(saved)
    assert caplog.text.count("loss_scale=") == 1


def test_the_log_tells_which_options_a_file_overrules(tmp_path, caplog):
    x = mx.gluon.Parameter("x", shape=(2,))
    x.initialize()

    def trainer(learning_rate, momentum, loss_scale):
        options = {"learning_rate": learning_rate, "momentum": momentum}
        return mxmp.gluon.Trainer([x], "sgd", options, kvstore=None, loss_scale=loss_scale)

    file = str(tmp_path / "t.states")
    trainer(0.05, 0.9, "dynamic").save_states(file)
    same, other = trainer(0.05, 0.9, "dynamic"), trainer(0.001, 0.9, 128)
    same.load_states(file)
    assert caplog.text == ""
    other.load_states(file)
    assert other.learning_rate == 0.05
    assert "lr=0.05 (not 0.001)" in caplog.text and "momentum" not in caplog.text
    assert "loss_scale=DynamicLossScale" in caplog.text and "(not StaticLossScale(value=128.0))" in caplog.text


def rewritten_arrays(fname, change):
    """Rewrite a state file with the bytes of its members changed, their sums and sizes right."""
    with zipfile.ZipFile(fname) as file:
        members = {info.filename: file.read(info) for info in file.infolist()}
    with zipfile.ZipFile(fname, "w") as file:
        for name, data in members.items():
            file.writestr(name, change(data) if name != "header.npy" else data)


NPY = {
    "a huge shape": lambda data: data.replace(b"(3, 2)", b"(3, 2" + b"0" * 11 + b")").replace(b" " * 11, b"", 1),
    "sizes whose product overflows": lambda data: data.replace(
        b"(3, 2), }" + b" " * 20, b"(4294967296, 4294967296), }  "
    ),
    "another dtype": lambda data: data.replace(b"<f4", b"<f8"),
    "objects": lambda data: data.replace(b"<f4", b"|O8"),
    "no dict": lambda data: data.replace(b"{", b"["),
    "open brackets": lambda data: data[:10] + b"(" * (len(data) - 11) + b"\n",
    "another version": lambda data: data[:6] + b"\x09" + data[7:],
    "a long header": lambda data: data[:8] + b"\xff\xff" + data[10:],
    "nothing": lambda data: b"",
    "cut off": lambda data: data[:-3],
}


@pytest.mark.parametrize("change", NPY.values(), ids=NPY.keys())
def test_load_refuses_a_damaged_array(saved_file, change):
    before = Path(saved_file).read_bytes()
    rewritten_arrays(saved_file, change)
    assert Path(saved_file).read_bytes() != before
    expect_refusal(saved_file, Run(), r"not a file of optimizer states, or damaged")


def test_a_file_with_any_byte_changed_is_refused_or_the_same(saved_file):
    whole, run = Path(saved_file).read_bytes(), Run()
    expected = StateFile(saved_file).header
    rng = random.Random(0)
    for number in range(400):
        data = bytearray(whole)
        place = rng.choice(
            [rng.randrange(len(data)), len(data) - 1 - rng.randrange(400)]
        )  # the directory is at the end
        data[place] ^= 1 << rng.randrange(8)
        Path(saved_file).write_bytes(data if number % 4 else data[:place])
        try:
            assert StateFile(saved_file).header == expected
            run.load(saved_file)
        except StateError as e:
            assert str(e).startswith(saved_file) and len(str(e)) < 1000


def test_empty_arrays_survive_a_file(tmp_path):
    fname = str(tmp_path / "value")
    state_file.write(fname, {}, {"a": np.ones((0, 3)), "b": np.float32(2.5) * np.ones(())})
    found = StateFile(fname).arrays
    assert found["a"].shape == (0, 3) and found["b"].shape == () and found["b"] == 2.5


ENTRY = {"array": ["states0.0", "float32", [3, 2]]}
STATES = {
    "a tuple of one": ([{"tuple": [ENTRY]}], "a tuple of 1; expected a tuple of 2", ""),
    "a tuple of three": ([{"tuple": [ENTRY, ENTRY, ENTRY]}], "a tuple of 3; expected a tuple of 2", ""),
    "no tuple": ([ENTRY], r"float32 \(3, 2\); expected a tuple of 2", ""),
    "a list": ([{"list": [ENTRY, ENTRY]}], "a list; expected a tuple of 2", ""),
    "a tuple of letters": ([{"tuple": "ab"}], "a tuple of str; expected a list in it", ""),
    "none": ([None], "None; expected a tuple of 2", ""),
    "none in it": ([{"tuple": [ENTRY, None]}], r"None; expected float32 \(3, 2\)", r"\[1\]"),
    "a number in it": ([{"tuple": [7, ENTRY]}], r"a number; expected float32 \(3, 2\)", r"\[0\]"),
    "a shape": (
        [{"tuple": [ENTRY, {"array": ["fields.0", "float32", [2, 3]]}]}],
        r"float32 \(2, 3\); expected float32 \(3, 2\)",
        r"\[1\]",
    ),
    "an odd scalar": ([{"numpy": ["S9", "a"]}], "'a' of dtype 'S9'; expected a number", ""),
}


@pytest.mark.parametrize("index", [0, 1], ids=["float32", "float16"])
@pytest.mark.parametrize("state, message, inside", STATES.values(), ids=STATES.keys())
def test_load_refuses_a_state_that_the_optimizer_cannot_go_on_with(saved_file, state, message, inside, index):
    (state,) = state
    entry = {"master": [ENTRY, state]} if index else state
    edited(saved_file, states=[{"dict": [[index, entry]]}])
    if "fields.0" in str(state):
        edit_states(saved_file, lambda header: None, {"fields.0": np.ones((2, 3), np.float32)})
    if message.startswith("a tuple of str") or "S9" in message:
        where = rf"states\[0\]{'.*' if index else ''}"
    else:
        where = rf"states\[0\]\[{index}\]{'.inner' if index else ''}{inside}"
    expect_refusal(saved_file, Run(), f"{where} is {message}")


@pytest.mark.parametrize(
    "entry, found",
    [(ENTRY, r"float32 \(3, 2\)"), ({"master": [None, None]}, "None"), ({"master": [5, None]}, "a number")],
)
def test_load_refuses_a_low_precision_state_without_its_master(saved_file, entry, found):
    edited(saved_file, states=[{"dict": [[1, entry]]}])
    expect_refusal(saved_file, Run(), rf"states\[0\]\[1\].* is {found}; expected")


def test_a_state_that_the_files_own_fields_ask_for_is_taken(tmp_path):
    """Momentum is 0 here, so this optimizer would make no state; the file decides."""
    saved, other = Run("sgd", momentum=0.9), Run("sgd")
    saved.step(0)
    saved.save(str(tmp_path / "s"))
    other.load(str(tmp_path / "s"))
    other.copy_weights(saved)
    for run in (saved, other):
        run.step(1)
    assert other.everything() == saved.everything()


def test_a_state_of_the_users_may_grow(tmp_path):
    class Growing(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return []

        def update(self, index, weight, grad, state):
            state.append(len(state))

    run = Run(Growing())
    run.step(0)
    run.step(1)
    run.save(str(tmp_path / "s"))
    run.load(str(tmp_path / "s"))
    assert run.trainer._updaters[0].states[0] == [0, 1]


def test_an_optimizer_that_wants_real_weights_to_make_states_is_taken_at_its_word(tmp_path):
    class Picky(mx.optimizer.Adam):
        def create_state(self, index, weight):
            if not weight.asnumpy().any():
                raise ValueError("zeros")
            return super().create_state(index, weight)

    run = Run(Picky())
    run.step(0)
    run.save(str(tmp_path / "s"))
    before = run.everything()
    run.trainer._updaters[0].states.clear()
    run.load(str(tmp_path / "s"))
    assert run.everything() == before


@pytest.mark.parametrize(
    "rows, shape", [([0, 9], [6, 2]), ([-1, 3], [6, 2]), ([3, 0], [6, 2]), ([0, 3], [6, 3]), ([0, 3], [6])]
)
def test_rows_beyond_a_sparse_array_are_named(rows, shape, tmp_path):
    fname, arrays = str(tmp_path / "value"), {}
    good = mx.nd.sparse.row_sparse_array(([[1.0, 2.0], [3.0, 4.0]], [0, 3]), shape=(6, 2))
    values, _, _ = state_file.encode(good, arrays)["row_sparse"]
    indices = state_file.encode(mx.nd.array(rows, dtype="int64"), arrays)
    state_file.write(fname, {}, arrays)
    with pytest.raises(StateError, match=r"value is values \(2, 2\) of rows that are not its; expected rows of an"):
        StateFile(fname).decode("value", {"row_sparse": [values, indices, shape]}, mx.cpu())


WRONG = [None, True, -1, 10**12, 0.5, "x", [], {}, [[1]], {"tuple": []}, {"dict": [[[], 1]]}]


def paths_of(data, path=()):
    """Yield the way to everything in JSON data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from paths_of(value, (*path, key))


def test_a_header_with_anything_else_in_one_place_is_refused_or_fits(tmp_path):
    """What is taken can go on: a step after it neither fails nor leaves the parameters' shapes."""
    fname, run = str(tmp_path / "s"), Run(dtypes=["float32", "float16"])
    run.step(0)
    run.save(fname)
    header, arrays = read_states(fname)
    rng, bad = random.Random(0), []
    for path in paths_of(header):
        changed = json.loads(json.dumps(header))
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value = rng.choice(WRONG)
        state_file.write(fname, changed, arrays)
        fresh = Run(dtypes=["float32", "float16"])
        try:
            fresh.load(fname)
        except StateError as e:
            assert str(e).startswith(fname)
            continue
        except Exception as e:
            bad.append((path, value, f"{type(e).__name__}: {e}"))
            continue
        if path[0] in ("states", "counts", "num_update"):
            try:
                fresh.step(1)
            except Exception as e:
                bad.append((path, value, f"step: {type(e).__name__}: {e}"))
    assert not bad
