"""States in a file: what a resumed run has of it, and which files are refused."""

import contextlib
import functools
import io
import json
import pickle
import random
import zipfile
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp.errors import CheckpointError, StateError
from mxmp.loss_scale import DynamicLossScale, parse
from tests.freeze import freeze
from tests.gluon.trainer_tools import DTYPES, backward, param, snapshot
from tests.train.state_files import edit_states, read_states
from tests.values import BFLOAT16

# A resumed run.


class Run:
    """A trainer of parameters, which each context updates by itself."""

    def __init__(self, optimizer="adam", dtypes=DTYPES, contexts=1, shape=(3, 2), **options):
        self.contexts = [mx.cpu(i) for i in range(contexts)]
        self.params = [param(np.ones(shape), t, ctx=self.contexts, name=f"p{i}") for i, t in enumerate(dtypes)]
        self.trainer = mxmp.gluon.Trainer(self.params, optimizer, options, kvstore=None, loss_scale=None)
        self.save, self.load = self.trainer.save_states, self.trainer.load_states

    def step(self, number, contexts=None):
        for ctx in self.contexts[:contexts]:
            backward(self.trainer, self.params, 0.01 * (number + 1), ctx)
        self.trainer.step(1, ignore_stale_grad=contexts is not None)

    def everything(self):
        return snapshot(self.trainer)

    def resumed(self, tmp_path, *args, **options):
        """Return another run that goes on where this one is."""
        other = Run(*args, contexts=len(self.contexts), **options)
        for mine, theirs in zip(self.params, other.params):
            for source, weight in zip(mine.list_data(), theirs.list_data()):
                source.copyto(weight)
        self.save(str(tmp_path / "s"))
        other.load(str(tmp_path / "s"))
        return other


def scheduler():
    return mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.1)


EXACT = {
    "sgd": lambda: {"momentum": 0.9, "lr_scheduler": scheduler(), "learning_rate": 0.1},
    "nadam": dict,  # keeps m_schedule on itself
    "lars": lambda: {"momentum": 0.9},  # keeps last_lr and cur_lr on itself
    "lbsgd": lambda: {"momentum": 0.9, "batch_scale": 2},  # keeps gradients on itself
    "rmsprop": lambda: {"centered": True},
}


@pytest.mark.parametrize("name", EXACT)
def test_a_resumed_run_is_bit_identical(name, tmp_path):
    whole = Run(name, contexts=2, **EXACT[name]())
    for number in range(3):
        whole.step(number)
    resumed = whole.resumed(tmp_path, name, **EXACT[name]())
    assert resumed.everything() == whole.everything()
    for number in range(3, 8):
        whole.step(number)
        resumed.step(number)
    assert resumed.everything() == whole.everything()


def test_states_alike_on_all_contexts_are_stored_once_and_fit_any_number(tmp_path):
    fname = str(tmp_path / "s")
    two, three = Run(contexts=2), Run(contexts=3)
    two.step(0)
    two.save(fname)
    assert len(read_states(fname)[0]["states"]) == 1
    three.load(fname)
    for k, updater in enumerate(three.trainer._updaters):
        assert updater.states[0][0].ctx == updater.states[1][0].ctx == mx.cpu(k)
    counts = three.trainer.optimizer._all_index_update_counts
    assert counts == {k: {0: 1, 1: 1, 2: 1} for k in range(3)} and counts[0] is not counts[1]
    three.step(1)  # each has arrays of its own
    assert len(set(map(repr, freeze([updater.states for updater in three.trainer._updaters])))) == 1


def test_states_that_differ_are_stored_for_each_context(tmp_path):
    two = Run(contexts=2)
    two.step(0)
    two.step(1, contexts=1)
    assert two.resumed(tmp_path).everything() == two.everything()
    with pytest.raises(StateError, match="the number of contexts with states of their own is 2; expected 1"):
        Run(contexts=1).load(str(tmp_path / "s"))


# Names of parameters: a net that is made again in a notebook has others.

ORDERS = {  # names in the file, those of another run, and where in the file the states of each are
    "made again": (["d8", "d9"], ["d10", "d9"], [1, 0]),
    "both sorted as text": (["d10", "d11", "d9"], ["d100", "d101", "d99"], [0, 1, 2]),
    "the same": (["d8", "d9", "d10"], ["d10", "d8", "d9"], [2, 0, 1]),
    "other names": (["d9", "d8"], ["e1", "e2"], [1, 0]),
    "the same name twice": (["d", "d"], ["d", "d"], [0, 1]),
}


@pytest.mark.parametrize("name", ["sgd", "lbsgd"])
@pytest.mark.parametrize(("before", "after", "places"), ORDERS.values(), ids=ORDERS)
def test_states_go_to_the_layers_that_they_are_of(before, after, places, name, tmp_path):
    options = {"momentum": 0.9, **({"batch_scale": 4} if name == "lbsgd" else {})}
    saved, other = (
        mxmp.gluon.Trainer([param([1.0, 2.0], "float16", name=n) for n in names], name, options, loss_scale=None)
        for names in (before, after)
    )
    for first in range(len(before)):
        for number, layer in enumerate(saved._params[first:]):
            backward(saved, layer, 0.1 * (number + 1))
        saved.step(1, ignore_stale_grad=True)
    saved.save_states(str(tmp_path / "s"))
    other.load_states(str(tmp_path / "s"))

    def kept(trainer, index):
        inner = trainer.optimizer
        own = trainer._updaters[0].states[index], getattr(inner, "cumgrads", {}).get(index)
        return repr(freeze([*own, inner._index_update_count[index]]))

    expected = [kept(saved, place) for place in places]
    assert [kept(other, index) for index in range(len(after))] == expected
    assert len(set(expected)) == len(after)


# Fields of the optimizer, and the loss scale.


def test_a_file_decides_over_options(tmp_path):
    saved, other = Run("sgd", momentum=0.9, wd=0.5, learning_rate=0.5), Run("sgd", wd=0.5)
    saved.step(0)
    saved.trainer.set_learning_rate(0.125)
    saved.save(str(tmp_path / "s"))
    other.load(str(tmp_path / "s"))
    inner = other.trainer.optimizer
    assert (inner.momentum, inner.wd, inner.lr) == (0.9, 0.5, 0.125)
    assert sorted(other.trainer._updaters[0].states) == [0, 1, 2]  # momenta, which its own options had not made
    other.step(1)


def test_fields_may_be_none_where_an_optimizer_can_have_them_so(tmp_path):
    """Before the first update, of a clipping, and a rate that a schedule has."""
    fresh, used = Run("lars", lr_scheduler=scheduler(), learning_rate=None), Run("lars", lr_scheduler=scheduler())
    fresh.save(str(tmp_path / "s"))
    used.step(0)
    used.trainer.optimizer.clip_gradient = float("inf")
    used.save(str(tmp_path / "used"))
    inner = used.trainer.optimizer
    used.load(str(tmp_path / "s"))
    assert (inner.lr, inner.cur_lr, inner.clip_gradient) == (None, None, None)
    used.load(str(tmp_path / "used"))
    assert inner.cur_lr is not None and inner.clip_gradient == float("inf")


@pytest.mark.parametrize("saved", [DynamicLossScale(init_scale=2.0**10, growth_interval=7), 128, None], ids=str)
def test_a_file_replaces_the_loss_scale(saved, tmp_path, caplog):
    """Without a word, unless nothing is scaled or checked any more."""
    x, file = param([1.0, 2.0]), str(tmp_path / "t.states")
    mxmp.gluon.Trainer([x], "sgd", kvstore=None, loss_scale=saved).save_states(file)
    line = "turns the loss scale off" if saved is None else ""
    for options in ({}, {"loss_scale": 64}):
        trainer = mxmp.gluon.Trainer([x], "sgd", kvstore=None, **options)
        for text in (line, ""):  # the second load changes nothing
            caplog.clear()
            trainer.load_states(file)
            assert trainer.loss_scale == parse(saved)
            assert line in caplog.text if text else caplog.text == ""


class OfAUser(mx.optimizer.Optimizer):
    """Makes states of real weights alone; and has a field that no file holds."""

    def __init__(self, hook, **kwargs):
        super().__init__(**kwargs)
        self.hook = hook

    def create_state(self, index, weight):
        assert weight.asnumpy().any()
        return []

    def update(self, index, weight, grad, state):
        pass


def resumed_with(state, tmp_path, dtype="float32"):
    """Return the state that an optimizer of a user has of its only weight after a save and a load."""
    run = Run(OfAUser(max, wd=0.5), [dtype])
    run.step(0)
    run.trainer._updaters[0].states[0] = state
    found = run.resumed(tmp_path, OfAUser(min), [dtype]).trainer
    assert found.optimizer.hook is min and found.optimizer.wd == 0.5  # a field that no file holds stays
    return found._updaters[0].states[0]


PLAIN = [None, True, 3, 0.1, float("inf"), np.float32(0.1), np.int64(3), np.bool_(True), "text", {}, ()]
NESTED = [[1, [2.5, None]], (1, ("a", False)), {1: {"a": (2, [3])}, "b": 1e-300}, {"$tuple": [1]}, {"x": {"$": ()}}]


@pytest.mark.parametrize("value", PLAIN + NESTED, ids=repr)
def test_plain_values_in_a_state_survive_a_file(value, tmp_path):
    found = resumed_with(value, tmp_path)
    assert found == value and repr(found) == repr(value) and type(found) is type(value)


@pytest.mark.parametrize("dtype", [*DTYPES, "float64", "int64", "uint8"])
def test_arrays_in_a_state_survive_a_file_bit_for_bit(dtype, tmp_path):
    array = mx.nd.array([[1.5, 2.25], [3e-5, 4], [5, 6]])
    array = mx.nd.amp_cast(array, dtype=BFLOAT16) if dtype == "bfloat16" else array.astype(dtype)
    found = resumed_with([array, (array, None)], tmp_path)
    assert freeze(found) == freeze([array, (array, None)])
    assert found[0].dtype == array.dtype
    if dtype not in ("float16", "bfloat16"):  # of which MXNet has no sparse arrays
        rows = resumed_with(array.tostype("row_sparse"), tmp_path)
        assert rows.stype == "row_sparse" and freeze(rows) == freeze(array)


def test_a_state_that_a_file_cannot_hold_is_named_and_nothing_is_written(tmp_path):
    run = Run(OfAUser(max))
    run.step(0)
    csr = mx.nd.ones((2, 2)).tostype("csr")
    for name, state in {"builtin_function_or_method": {"f": max}, "set": ({1, 2},), "CSRNDArray": [csr]}.items():
        run.trainer._updaters[0].states[0] = state
        with pytest.raises(StateError, match=f"^the states of OfAUser hold a {name}, which a state file cannot; expected"):
            run.save(str(tmp_path / "s"))
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_leads_to_no_file_is_named(tmp_path):
    run = Run()
    for error in (FileNotFoundError, CheckpointError):
        with pytest.raises(error, match="none: there is no such file"):
            run.load(str(tmp_path / "none"))
    with pytest.raises(CheckpointError, match="it is a folder, not a file"):
        run.load(str(tmp_path))
    for call in (run.load, run.save):
        with pytest.raises(CheckpointError, match="fname is None; expected the path of a file"):
            call(None)


# Everything that does not fit is an error that names file and field, and changes nothing.


def expect_refusal(fname, run, message):
    before = run.everything()
    with pytest.raises(StateError, match=message) as caught:
        run.load(fname)
    assert str(caught.value).startswith(fname) and len(str(caught.value)) < 1000
    assert run.everything() == before


@pytest.fixture
def saved_file(tmp_path):
    run = Run()
    run.step(0)
    run.save(str(tmp_path / "s"))
    return str(tmp_path / "s")


ENTRY = {"$array": "0"}


def states(index, state):
    return {"states": [{"$dict": [[index, state]]}]}


def masters(index, master):
    return {"masters": [{"$dict": [[index, master]]}]}


def rows(places, shape):
    """Return a row_sparse array of two rows of two numbers, at any places of any shape."""
    return {"fields": {"lr": {"$row_sparse": [{"$array": "values"}, {"$array": places}, shape]}}}


EXTRA = {"loss_scale": {"kind": "noop"}, "skipped_steps": 0, "consecutive_skips": 0, "last_step_skipped": False}
HEADERS = {
    "format": ({"format": "else"}, "its format is 'else'"),
    "version": ({"version": 99}, "version is 99; expected 1; it comes from another mxmp"),
    "no parameters": ({"params": 5}, "params is 5; expected a list"),
    "no shape": ({"params": [5, 5, 5]}, r"the shape of parameter 'p0' \(number 0\) is None; expected \[3, 2\]"),
    "negative": ({"num_update": -1}, "num_update is -1; expected a whole number"),
    "True": ({"num_update": True}, "num_update is True; expected a whole number"),
    "a scale below 0": ({"extra": {**EXTRA, "loss_scale": {"kind": "static", "value": -1}}}, "does not load: scale=-1.0 is no loss scale"),
    "skips below 0": ({"extra": {**EXTRA, "skipped_steps": -1}}, "does not load: skipped_steps is -1"),
    "counts": ({"counts": {"$dict": [[0, [0]]]}}, "counts is .*; expected whole numbers by device"),
    "unknown": ({"fields": {"volume": 11}}, "fields.volume is 11; expected absent: Adam has no such field"),
    "a method": ({"fields": {"update": 1}}, "fields.update is 1; expected absent"),
    "a type": ({"fields": {"beta1": "much"}}, "fields.beta1 is 'much'; expected the like of 0.9"),
    "no rate": ({"fields": {"lr": None}}, "fields.lr is None; expected the like of 0.001"),
    "no number at all": ({"fields": {"beta1": float("nan")}}, "fields.beta1 is nan; expected the like of 0.9"),
    "an endless rate": ({"fields": {"lr": float("inf")}}, "fields.lr is inf; expected the like of 0.001"),
    "fields": ({"fields": 7}, "fields is 7; expected a dict"),
    "states": ({"states": [7]}, r"states\[0\] is int; expected a dict"),
    "an index": (states(9, None), r"states\[0\]\[9\] is of no parameter; expected an index from 0 to 2"),
    "a gone array": (states(0, {"$array": "gone"}), "header has a .array of 'gone'"),
    "a kind": (states(0, {"$master": "abcdef"}), "header has a .master of 'abcdef'"),
    "text": (states(0, {"$array": "text"}), "header has a .array of 'text'"),
    "a shape": (states(0, {"$tuple": [ENTRY, {"$array": "values"}]}), r"\[0\] is float32 \(2, 2\); expected arrays of \(3, 2\)"),
    "a master": (masters(1, {"$array": "values"}), r"masters\[0\]\[1\] is float32 \(2, 2\); expected float32 \(3, 2\)"),
    "a master of 5": (masters(1, 5), r"masters\[0\]\[1\] is an int; expected float32 \(3, 2\)"),
    "masters": ({"masters": [7]}, r"masters\[0\] is int; expected a dict"),
    "rows beyond": (rows("beyond", [6, 2]), "header has a .row_sparse"),
    "rows below 0": (rows("below", [6, 2]), "header has a .row_sparse"),
    "rows in disorder": (rows("disorder", [6, 2]), "header has a .row_sparse"),
    "longer rows": (rows("good", [6, 3]), "header has a .row_sparse"),
    "no rows": (rows("good", [6]), "header has a .row_sparse"),
    "good rows": (rows("good", [6, 2]), "fields.lr is \n<RowSparse.*; expected the like of 0.001"),
    "deep": ({"extra": json.loads("[" * 900 + "]" * 900)}, "too many within each other"),
    "a large number": ({"num_update": 10**400}, "it holds a number of more than 64 bits"),
    "a clipping": ({"fields": {"clip_gradient": {"a": 1}}}, "fields.clip_gradient is {'a': 1}; expected a number or None"),
    "a long scale": ({"extra": {**EXTRA, "loss_scale": "a" * 5000}}, "does not load: a loss scale's state is 'aaa"),
    "a long index": (states("a" * 5000, None), r"states\[0\]\['aaa"),
    "an array for a version": ({"version": ENTRY}, "its version holds an array"),
    "an array among counts": ({"counts": {"$dict": [[0, ENTRY]]}}, "its counts holds an array"),
}  # fmt: skip
MORE = {"good": [0, 3], "beyond": [0, 9], "below": [-1, 3], "disorder": [3, 0], "text": ["a"]}
MORE = {"values": np.ones((2, 2), np.float32), **{name: np.array(value) for name, value in MORE.items()}}


OTHERS = {
    "an optimizer": ({"optimizer": "sgd"}, "the optimizer is Adam; expected SGD, as here: train with the optimizer of the"),
    "a schedule": ({"lr_scheduler": scheduler()}, "the lr_scheduler is None; expected FactorScheduler, as here: train with"),
    "fewer parameters": ({"dtypes": DTYPES[:2]}, "the number of parameters is 3; expected 2"),
    "a shape": ({"shape": (2, 3)}, r"the shape of parameter 'p0' \(number 0\) is \[3, 2\]; expected \[2, 3\]"),
}


@pytest.mark.parametrize(("other", "message"), OTHERS.values(), ids=OTHERS)
def test_load_refuses_the_states_of_another_trainer(saved_file, other, message):
    expect_refusal(saved_file, Run(**other), message)


@pytest.mark.parametrize(("changes", "message"), HEADERS.values(), ids=HEADERS.keys())
def test_load_refuses_a_header_that_was_edited(saved_file, changes, message):
    edit_states(saved_file, lambda header: header.update(changes), MORE)
    expect_refusal(saved_file, Run(), message)


def test_load_refuses_an_array_that_is_named_often(saved_file):
    """A header of some bytes would fill the memory with copies of it."""
    edit_states(saved_file, lambda header: header.update(states(0, [{"$array": "9"}] * 99)), {"9": np.zeros(10_000)})
    expect_refusal(saved_file, Run(), "its arrays are larger than the file")


def npy(name, change, compression=zipfile.ZIP_STORED, more=b""):
    """Change the bytes of one array, whose sums and sizes stay right, or the archive."""

    def damage(data):
        changed = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(changed, "w", compression) as new:
            for each in old.namelist():
                new.writestr(each, change(old.read(each)) if each == name else old.read(each))
            if more:
                new.writestr("more.npy", more)
        return changed.getvalue()

    return damage


DAMAGES = {
    "cut off": lambda data: data[:-40],
    "a name": lambda data: data[:26] + b"\xff\x0f" + data[28:],  # its length: the error quotes the file
    "more at its end": lambda data: data + b"x",
    "more at the end of a pickle": lambda data: pickle.dumps({}) + b"x",
    "a pickle": lambda data: b"\x80\x04" + data,
    # A sum no longer fits; numpy stores text as UTF-32.
    "flipped": lambda data: data.replace("mxmp".encode("utf-32-le"), "mxmq".encode("utf-32-le")),
    "a bomb": npy("", None, zipfile.ZIP_DEFLATED, bytes(100_000)),  # fills the memory: much in little
    "another header": npy("header.npy", lambda data: data.replace("{".encode("utf-32-le"), "[".encode("utf-32-le"))),
    "brackets": npy("header.npy", lambda data: data[:128] + "[".encode("utf-32-le") * ((len(data) - 128) // 4)),
    "a huge shape": npy("0.npy", lambda data: data.replace(b"(3, 2), }" + b" " * 10, b"(3, 20000000000), }")),
    "an overflow": npy("0.npy", lambda data: data.replace(b"(3, 2), }" + b" " * 20, b"(4294967296, 4294967296), }  ")),
    "another dtype": npy("0.npy", lambda data: data.replace(b"<f4", b"<f8")),
    "objects": npy("0.npy", lambda data: data.replace(b"<f4", b"|O8")),
    "open brackets": npy("0.npy", lambda data: data[:10] + b"(" * (len(data) - 11) + b"\n"),
    "nothing": npy("0.npy", lambda data: b""),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_load_refuses_a_damaged_file(saved_file, damage):
    whole = Path(saved_file).read_bytes()
    Path(saved_file).write_bytes(damage(whole))
    assert Path(saved_file).read_bytes() != whole
    expect_refusal(saved_file, Run(), "not a file of optimizer states, or damaged")


def test_a_file_with_any_byte_changed_is_refused_or_the_same(saved_file):
    whole, run, rng = Path(saved_file).read_bytes(), Run(), random.Random(0)
    expected = freeze(read_states(saved_file))
    for number in range(100):
        data = bytearray(whole)
        place = rng.choice([rng.randrange(len(data)), len(data) - 1 - rng.randrange(400)])  # the directory is last
        data[place] ^= 1 << rng.randrange(8)
        Path(saved_file).write_bytes(data if number % 4 else data[:place])
        try:
            run.load(saved_file)
        except StateError as e:
            assert str(e).startswith(saved_file) and len(str(e)) < 1000
        else:
            assert freeze(read_states(saved_file)) == expected


WRONG = [None, True, -1, 10**12, 0.5, "x", [], {}, [[1]], {"$tuple": []}, {"$dict": [[[], 1]]}, {"$array": "1"}]


def places_of(data):
    """Yield each list and dict in JSON data with each key of it."""
    for key in range(len(data)) if isinstance(data, list) else list(data) if isinstance(data, dict) else ():
        yield data, key
        yield from places_of(data[key])


def replace(number, value, header):
    data, key = list(places_of(header))[number]
    data[key] = value


def test_a_header_with_anything_else_in_one_place_is_refused_or_fits(tmp_path):
    """A step after a load may fail where a state has another form, by an error of Python or MXNet; memory is safe."""
    fname, run, rng = str(tmp_path / "s"), Run(dtypes=["float32", "float16"]), random.Random(0)
    run.step(0)
    run.save(fname)
    whole = Path(fname).read_bytes()
    for number in range(0, len(list(places_of(read_states(fname)[0]))), 2):
        Path(fname).write_bytes(whole)
        edit_states(fname, functools.partial(replace, number, rng.choice(WRONG)))
        fresh = Run(dtypes=["float32", "float16"])
        try:
            fresh.load(fname)
        except StateError as e:
            assert str(e).startswith(fname)
        else:
            with contextlib.suppress(Exception):
                fresh.step(1)
            assert all(each.data().shape == (3, 2) for each in fresh.params)
