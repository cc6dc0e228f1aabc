"""What logs of training steps record, of every front: to a list, to a table, to event files of TensorBoard.

The table is read by Python's own reader, event files by their format: TFRecords of protocol buffers, see
https://www.tensorflow.org/tutorials/load_data/tfrecord and tensorflow/core/util/event.proto.
"""

from __future__ import annotations

import csv
import gc
import math
import struct
import sys
import weakref

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon.contrib.estimator import Estimator, GradientUpdateHandler
from tensorboardX.proto import event_pb2

import mxmp
from mxmp.diagnose import CSVLogger, StepLogger, TensorBoardLogger
from mxmp.errors import CheckpointError, DependencyError, LossScaleError, NonFiniteLossError, TrainerError
from mxmp.estimator import MixedPrecisionHandler
from mxmp.loss_scale import DynamicLossScale
from tests.full_disk import files_of_at_most
from tests.train.adapters import ADAPTERS, Bucketing, Module, Trainer

OVER_FRONTS = pytest.mark.parametrize("make", ADAPTERS, ids=lambda make: make.__name__)


class Listed(StepLogger):
    """Keeps the records."""

    def __init__(self, every=1, ledger=None):
        super().__init__(every, ledger)
        self.records, self.ended = [], 0

    def _write(self, record):
        self.records.append(record)

    def _end(self):
        self.ended += 1


class Ledger:
    """A ledger of told shares."""

    def __init__(self):
        self.told = {}

    def shares(self):
        return self.told


def attached(make=Trainer, every=1, ledger=None, **options):
    adapter = make(DynamicLossScale(init_scale=4, growth_interval=2), **options)
    return adapter, Listed(every, ledger).attach(adapter.owner)


def norm(*values):
    return pytest.approx(np.linalg.norm(np.concatenate([np.ravel(value) for value in values])), rel=1e-6)


@OVER_FRONTS
def test_each_step_is_recorded_with_its_scale_and_the_norm_of_true_gradients(make):
    adapter, log = attached(make)
    adapter.run({"a": [0.25, -0.5], "b": [1.0]})
    adapter.run(0.125)
    log.detach()
    first, second = log.records
    assert (first.step, first.taken, first.scale, first.next_scale, first.error) == (1, True, 4, 4, "")
    assert (second.step, second.taken, second.scale) == (2, True, 4)
    assert first.grad_norm == norm([0.25, -0.5, 1.0])
    assert second.grad_norm == norm([0.125] * 3)
    assert 0 <= first.seconds <= second.seconds
    assert first.zero_share is first.subnormal_share is first.largest is None


@OVER_FRONTS
def test_a_skipped_step_is_recorded(make):
    adapter, log = attached(make)
    assert not adapter.run(0.25, bad=np.inf)
    adapter.run(0.25)
    log.close()
    skipped, taken = log.records
    assert (skipped.step, skipped.taken, taken.step, taken.taken) == (1, False, 2, True)
    assert not math.isfinite(skipped.grad_norm) and math.isfinite(taken.grad_norm)
    assert skipped.error == "" and skipped.why.startswith("gradients not finite: '") and taken.why == ""


def test_the_smallest_share_that_is_not_finite_comes_first():
    """Of five weights with 1 to 5 elements that are not finite, of 10, and one without."""
    params = {name: gluon.Parameter(name, shape=(10,)) for name in "fdbace"}
    for each in params.values():
        each.initialize(mx.init.One())
    trainer = mxmp.gluon.Trainer(params, "sgd", loss_scale=DynamicLossScale(init_scale=4))
    log = Listed().attach(trainer)
    with autograd.record(), trainer.scale_loss(sum(each.data().sum() for each in params.values())) as scaled:
        scaled.backward()
    for count, name in enumerate("abcde", 1):
        params[name].grad()[:count] = np.nan if count % 2 else np.inf
    trainer.step(1)
    log.close()
    assert log.records[0].why == "gradients not finite: 'a' (10 %), 'b' (20 %), 'c' (30 %) and 2 more"


@pytest.mark.parametrize(
    "make, options, gradient",
    [(Trainer, {}, 0.75), (Module, {}, 0.75), (Trainer, {"kvstore": None}, 0.5)],
    ids=["trainer", "module", "without a kvstore the largest norm counts"],
)
def test_gradients_of_several_contexts_are_summed_first(make, options, gradient):
    adapter, log = attached(make, contexts=2, **options)
    adapter.run([0.25, 0.5])
    log.close()
    assert log.records[0].grad_norm == norm([gradient] * 3)


@pytest.mark.parametrize("make", [Trainer, Module, Bucketing], ids=lambda make: make.__name__)
def test_float16_gradients_are_squared_in_float32(make):
    adapter = make(2.0**10, dtype="float16")
    log = Listed().attach(adapter.owner)
    adapter.run(0.25)  # 256, whose square float16 does not hold
    log.close()
    assert log.records[0].grad_norm == norm([0.25] * 3)


def test_the_norm_is_that_before_clipping():
    adapter, log = attached()
    adapter.backward(0.5)
    assert adapter.clip(1e-2) == norm([0.5] * 3)
    adapter.step()
    log.close()
    assert log.records[0].grad_norm == norm([0.5] * 3)


def test_the_norm_is_computed_in_one_step_of_so_many():
    adapter, log = attached(every=3)
    for _ in range(7):
        adapter.run()
    log.close()
    assert [each.step for each in log.records if each.grad_norm is not None] == [1, 4, 7]


def test_nothing_is_read_from_a_device_before_the_next_finite_check(monkeypatch):
    adapter, log = attached()
    reads = []
    original = mx.nd.NDArray.asnumpy
    monkeypatch.setattr(mx.nd.NDArray, "asnumpy", lambda array: reads.append(len(log.records)) or original(array))
    adapter.backward()
    log.log(loss=mx.nd.ones(3))
    adapter.step()
    assert len(reads) == 1  # the finite check
    adapter.run()
    assert len(reads) == 4  # the next one, then norm and loss of the first step
    log.close()


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("clips", [False, True])
def test_a_step_that_raised_is_recorded_at_once(clips):
    adapter, log = attached()
    adapter.backward(np.nan)
    with pytest.raises(NonFiniteLossError):
        adapter.clip(1.0) if clips else adapter.step()
    (record,) = log.records
    assert not record.taken and record.error.startswith("NonFiniteLossError: the loss itself is NaN")
    assert "\n" not in record.error


@pytest.mark.parametrize(
    "call, text",
    [
        *((lambda every=every: Listed(every), "^Listed: every=.*; expected a whole number of steps, 1 or more")
          for every in (0, -1, 1.5, True, None, "1")),
        (lambda: Listed(1, {}), "^Listed: ledger is a dict, which has no shares"),
        (lambda: Listed().attach(mx.optimizer.SGD()), "expected a trainer, a module or a LossScaleOptimizer of mxmp"),
        (lambda: Listed().log(loss=1.0), "^log: this Listed is not attached"),
        *((lambda loss=loss: attached()[1].log(loss=loss), "^log: loss is a.*; expected a number, an NDArray, or a list")
          for loss in ("0.5", None, [], [None], {"loss": 1.0})),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(call, text):
    with pytest.raises(TrainerError, match=text):
        call()


# ---------------------------------------------------------------------- detach and close


def test_a_log_that_is_closed_is_attached_no_more():
    adapter, log = attached()
    log.close()
    with pytest.raises(TrainerError, match="^attach: this Listed is closed"):
        log.attach(adapter.owner)


def test_a_log_closes_at_the_end_of_its_block_whatever_is_raised():
    with pytest.raises(ZeroDivisionError):
        with attached()[1] as log:
            raise ZeroDivisionError
    log.close()
    assert log.ended == 1


def test_the_end_of_the_program_writes_the_last_step(monkeypatch):
    at_exit = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    monkeypatch.setattr("atexit.unregister", at_exit.remove)
    adapter, log = attached()
    adapter.run()
    (function,) = at_exit
    function()
    assert len(log.records) == log.ended == 1 and at_exit == []


def test_a_log_that_was_never_closed_keeps_nothing_alive():
    adapter, log = attached()
    adapter.run()
    kept = [weakref.ref(log), weakref.ref(adapter.owner)]
    del adapter, log
    gc.collect()
    assert [each() for each in kept] == [None, None]


# ---------------------------------------------------------------------- loss


@pytest.mark.parametrize("loss_scale", [4.0, None])
@pytest.mark.parametrize("after", [False, True])
def test_a_loss_is_that_of_the_step_under_way_or_after_it_of_that_step(after, loss_scale):
    adapter = Trainer(loss_scale)
    log = Listed().attach(adapter.owner)
    for loss in (3.0, 2.0, None):
        if loss is not None and not after:
            log.log(loss=loss)
        adapter.run()
        if loss is not None and after:
            log.log(loss=loss)
    log.close()
    assert [each.loss for each in log.records][:2] == [3.0, 2.0]


@pytest.mark.parametrize(
    ("loss", "mean"),
    [
        (np.float32(0.5), 0.5),
        (3, 3.0),
        (mx.nd.array([1, 2, 6]), 3.0),
        (mx.nd.array([1, 2, 6]).astype("float16"), 3.0),
        (mx.nd.array([1, 2, 6]).astype("int32"), 3.0),
        (mx.nd.array([60000, 60000]).astype("float16"), 60000),  # no sum that float16 could hold
        ([mx.nd.array([1, 2, 6]), mx.nd.array([7], ctx=mx.cpu(1))], 4.0),
        (mx.np.array([[1.0, 3.0]]), 2.0),
    ],
)
def test_losses_are_averaged(loss, mean):
    adapter, log = attached()
    adapter.backward()
    log.log(loss=loss)
    adapter.step()
    log.close()
    assert log.records[0].loss == pytest.approx(mean, rel=2.0**-8 if mean == 60000 else 1e-6)


def test_a_loss_in_a_recorded_graph_is_not_recorded_further():
    adapter, log = attached()
    x = mx.nd.ones(2)
    x.attach_grad()
    with autograd.record():
        y = x * 2
        log.log(loss=y)
    y.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), [2, 2])
    log.close()


# ---------------------------------------------------------------------- ledger


def test_the_shares_of_a_ledger_are_recorded_as_they_are_when_a_step_ends():
    ledger = Ledger()
    adapter, log = attached(ledger=ledger)
    adapter.run()
    ledger.told = {"zero_share": 0.5, "subnormal_share": 0.25, "largest": 8.0}
    adapter.run()
    ledger.told = {}
    log.close()
    assert [each[7:10] for each in log.records] == [(None, None, None), (0.5, 0.25, 8.0)]


# ---------------------------------------------------------------------- fits


LOSS = gluon.loss.L2Loss()


def network():
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    return net


def batches(count):
    data = mx.nd.random.normal(shape=(4 * count, 3))
    return gluon.data.DataLoader(gluon.data.ArrayDataset(data, mx.nd.ones((4 * count, 2))), 4)


def silent(estimator):
    estimator.logger.handlers.clear()
    estimator.logger.propagate = False
    return estimator


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("late", [False, True])
def test_an_estimator_takes_a_log_as_a_handler(order, late):
    net, data = network(), batches(3)
    outputs = [LOSS(net(x), y).mean().asscalar() for x, y in data]
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    estimator = silent(Estimator(net, LOSS, mx.metric.Loss(), trainer=trainer))
    log = Listed()
    handlers = [MixedPrecisionHandler("float32", loss_scale=128), log][::order]
    if late:  # the log's handler comes after the step
        handlers.append(GradientUpdateHandler(priority=-3000))
    estimator.fit(data, epochs=2, event_handlers=handlers)
    assert [each.step for each in log.records] == [1, 2, 3, 4, 5, 6]
    assert [each.loss for each in log.records] == pytest.approx(outputs * 2, rel=1e-5)
    assert all(each.scale == 128 and each.grad_norm > 0 for each in log.records)
    estimator.fit(batches(1), epochs=1, event_handlers=handlers)
    log.close()
    assert [each.step for each in log.records[6:]] == [7]


@pytest.mark.parametrize("before", [False, True])
def test_an_observer_of_the_handler_is_attached_for_each_fit(before):
    """And one that was attached before stays so after it."""
    net, log = network(), Listed()
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", loss_scale=128)
    estimator = silent(Estimator(net, LOSS, mx.metric.Loss(), trainer=trainer))
    handler = MixedPrecisionHandler("float32", loss_scale=128, observers=[log])
    if before:
        log.attach(trainer)
    for fits in (1, 2):
        estimator.fit(batches(2), epochs=1, event_handlers=[handler])
        assert len(log.records) == 2 * fits - before and bool(trainer._scaler.observers) == before
    log.close()
    assert [each.step for each in log.records] == [1, 2, 3, 4]


def test_a_module_is_attached_before_it_is_fitted():
    data = mx.io.NDArrayIter(np.ones((12, 3), "float32"), np.ones(12, "float32"), 4, label_name="softmax_label")
    output = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
    module = mxmp.module.Module(output, policy="O1", loss_scale=8)
    with Listed().attach(module) as log:
        module.fit(data, num_epoch=2, batch_end_callback=lambda param: log.log(loss=param.nbatch))
    assert [each.step for each in log.records] == [1, 2, 3, 4, 5, 6]
    assert [each.loss for each in log.records] == [0, 1, 2, 0, 1, 2]
    assert all(each.scale == 8 and each.grad_norm > 0 for each in log.records)


@pytest.mark.parametrize("loss_scale", [64.0, None])
@pytest.mark.parametrize("where", ["before backward", "before step", "after step"])
def test_the_loss_of_a_group_is_the_mean_over_its_batches(where, loss_scale):
    """Each by its samples, wherever it is given; the last group is smaller."""
    net = gluon.nn.Dense(1, in_units=2, prefix="grouped_")
    net.initialize()
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0}, loss_scale=loss_scale)
    log, accumulator, losses = Listed().attach(trainer), mxmp.gluon.Accumulator(trainer, 3), []
    for rows in accumulator([4, 2, 2, 4, 4, 1, 3, 5]):
        with autograd.record():
            loss = net(mx.nd.random.normal(shape=(rows, 2))).reshape((-1,)) ** 2
        losses.append(loss.asnumpy())
        if where == "before backward":
            log.log(loss)
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
        if where == "before step":
            log.log(loss)
        accumulator.step(rows)
        if where == "after step":
            log.log(loss)
    log.close()
    expected = [np.concatenate(group).mean() for group in (losses[:3], losses[3:6], losses[6:])]
    np.testing.assert_allclose([record.loss for record in log.records], expected, rtol=1e-5)


# ---------------------------------------------------------------------- a table

COLUMNS = "step,seconds,taken,scale,next_scale,grad_norm,loss,zero_share,subnormal_share,largest,error,why"


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def trained(path, steps=1, **options):
    adapter = Trainer(4.0)
    with CSVLogger(path, **options).attach(adapter.owner):
        for _ in range(steps):
            adapter.run(0.25)


def test_the_file_of_a_run_has_a_line_per_step(tmp_path):
    adapter = Trainer(DynamicLossScale(init_scale=256, growth_interval=100))
    with CSVLogger(tmp_path / "run", every=2).attach(adapter.owner) as log:
        adapter.run(0.25)
        log.log(loss=1.5)
        adapter.run(0.25, bad=np.inf)
    assert log.path == str(tmp_path / "run" / "steps.csv")
    first, second = rows(log.path)
    assert ",".join(first) == COLUMNS and repr(log) == f"CSVLogger({log.path!r}, every=2, steps=2)"
    assert (first["step"], first["taken"], first["loss"], first["error"]) == ("1", "1", "1.5", "")
    assert float(first["scale"]) == float(first["next_scale"]) == 256
    assert float(first["grad_norm"]) == pytest.approx(0.25 * np.sqrt(3))
    assert (second["step"], second["taken"], second["grad_norm"]) == ("2", "0", "")
    assert float(second["next_scale"]) == 128
    assert first["zero_share"] == first["subnormal_share"] == first["largest"] == ""


def test_a_resumed_run_goes_on_in_the_file(tmp_path):
    trained(tmp_path, 2)
    before = (tmp_path / "steps.csv").read_bytes()
    trained(tmp_path)
    after = (tmp_path / "steps.csv").read_bytes()
    assert after.startswith(before)
    found = rows(tmp_path / "steps.csv")
    assert [row["step"] for row in found] == ["1", "2", "1"]
    assert float(found[2]["seconds"]) >= float(found[1]["seconds"])


def test_seconds_go_on_where_a_log_is_attached_again(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("mxmp.diagnose.log.time.monotonic", lambda: clock[0])
    adapter = Trainer(4.0)
    for _run in range(2):  # two fits, and a resumed run
        log = CSVLogger(tmp_path)
        for _ in range(2):
            log.attach(adapter.owner)
            clock[0] += 0.5
            adapter.run(0.25)
            log.detach()
            clock[0] += 10
        log.close()
    assert [row["seconds"] for row in rows(log.path)] == ["0.5", "1.0", "1.5", "2.0"]


@pytest.mark.parametrize("kept", ["", COLUMNS[:10], f"{COLUMNS}\n", f"{COLUMNS}\n2,0.5,1,65"])
def test_a_line_that_was_never_finished_is_taken_out(kept, tmp_path):
    (tmp_path / "steps.csv").write_text(kept)
    trained(tmp_path)
    assert (tmp_path / "steps.csv").read_text().startswith(f"{COLUMNS}\n1,")


def test_lines_are_in_the_file_as_soon_as_the_next_step_ends(tmp_path):
    """Whole, and none waits in a buffer: a process that is killed then has lost the last step alone."""
    adapter = Trainer(4.0)
    log = CSVLogger(tmp_path).attach(adapter.owner)
    for count in range(3):
        adapter.run(0.25)
        assert len(rows(log.path)) == count
        with open(log.path) as file:
            assert file.read().endswith("\n")
    log.close()


def test_a_full_disk_is_an_error_that_leaves_whole_lines(tmp_path):
    adapter = Trainer(4.0)
    log = CSVLogger(tmp_path).attach(adapter.owner)
    adapter.run(0.25)
    size = (tmp_path / "steps.csv").stat().st_size
    with files_of_at_most(size + 10), pytest.raises(
        CheckpointError, match="steps.csv cannot be written: File too large"
    ):
        adapter.run(0.25)
    assert (tmp_path / "steps.csv").stat().st_size == size
    adapter.run(0.25)
    log.close()
    assert [row["step"] for row in rows(log.path)] == ["3"]


@pytest.mark.parametrize("text", ["step,loss\n1,2\n", "a network\n", "no line at all"])
def test_a_file_with_other_columns_is_refused_and_left_alone(tmp_path, text):
    (tmp_path / "steps.csv").write_text(text)
    with pytest.raises(CheckpointError, match=r"steps\.csv: its columns are '.*'; expected 'step,seconds"):
        CSVLogger(tmp_path)
    assert (tmp_path / "steps.csv").read_text() == text


def test_a_file_that_another_log_writes_is_refused(tmp_path):
    with CSVLogger(tmp_path):
        with pytest.raises(CheckpointError, match="another log is writing it"):
            CSVLogger(tmp_path)
    CSVLogger(tmp_path).close()


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.csv").mkdir()
    for path, text in {
        **dict.fromkeys(["", None, 3, b"run"], "^CSVLogger: path is .*; expected the folder of a run"),
        tmp_path / "absent" / "mine.csv": "there is no folder .*absent",
        tmp_path / "file" / "run": "file/run: the folder cannot be made",
        tmp_path / "folder.csv": r"folder\.csv cannot be written: Is a directory",
    }.items():
        with pytest.raises(CheckpointError, match=text):
            CSVLogger(path)


# ---------------------------------------------------------------------- event files


def events(path):
    """Return the events of a file: each behind its length, between two checksums."""
    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        found.append(event_pb2.Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


def scalars(folder):
    """Return {step: {tag: value}} of all event files of a folder."""
    found = {}
    for path in sorted(folder.iterdir()):
        version, *rest = events(path)
        assert version.file_version == "brain.Event:2" and "tfevents" in path.name
        for event in rest:
            found.setdefault(event.step, {}).update({each.tag: each.simple_value for each in event.summary.value})
    return found


@pytest.mark.parametrize("make", [Trainer, Module], ids=lambda make: make.__name__)
def test_the_scalars_of_each_step_are_in_the_event_file(make, tmp_path):
    adapter = make(DynamicLossScale(init_scale=256, growth_interval=100))
    with TensorBoardLogger(tmp_path / "run").attach(adapter.owner) as log:
        adapter.run(0.25)
        log.log(loss=1.5)
        adapter.run(0.25, bad=np.inf)
        adapter.run(0.25)
    found = scalars(tmp_path / "run")
    assert found[1] == {
        "loss_scale": 256,
        "skipped_steps": 0,
        "loss": 1.5,
        "gradients/norm": pytest.approx(0.25 * np.sqrt(3)),
    }
    for number, scale in ((2, 256), (3, 128)):
        found[number].pop("loss", None)  # that of scale_loss, of a trainer
        assert found[number] == {"loss_scale": scale, "skipped_steps": 1}


def test_the_shares_of_a_ledger_are_scalars(tmp_path):
    adapter, ledger = Trainer(4.0), Ledger()
    ledger.told = {"zero_share": 0.5, "subnormal_share": 0.25, "largest": 8.0}
    with TensorBoardLogger(tmp_path, ledger=ledger).attach(adapter.owner):
        adapter.run(0.25)
    assert {f"gradients/{name}": value for name, value in ledger.told.items()}.items() <= scalars(tmp_path)[1].items()


def test_what_is_not_finite_is_left_out(tmp_path):
    adapter = Trainer(DynamicLossScale(init_scale=256, growth_interval=100))
    with TensorBoardLogger(tmp_path).attach(adapter.owner) as log:
        adapter.run(0.25, bad=np.nan)
        log.log(loss=float("nan"))
    assert scalars(tmp_path) == {1: {"loss_scale": 256, "skipped_steps": 1}}


def test_a_skip_at_which_the_scale_gives_up_counts_and_a_loss_that_is_not_finite_does_not(tmp_path):
    adapter = Trainer(DynamicLossScale(init_scale=1, max_floor_skips=1))
    with TensorBoardLogger(tmp_path).attach(adapter.owner):
        adapter.backward(np.nan)
        with pytest.raises(NonFiniteLossError):
            adapter.step()
        assert adapter.owner.skipped_steps == 0
        with pytest.raises(LossScaleError):
            adapter.run(0.25, bad=np.inf)
        adapter.run(0.25)
    (path,) = tmp_path.iterdir()
    counts = [each.summary.value[0].simple_value for each in events(path)[1:]]
    assert counts == [0, 1, 1] and adapter.owner.skipped_steps == 1


def test_a_resumed_run_begins_a_file_beside_the_first(tmp_path):
    for _ in range(2):  # within a second, for which tensorboardX has one name
        adapter = Trainer(4.0)
        with TensorBoardLogger(tmp_path).attach(adapter.owner):
            adapter.run(0.25)
    assert [len(events(path)) for path in tmp_path.iterdir()] == [2, 2]


def test_the_file_is_brought_up_to_date_while_training_goes_on(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("mxmp.diagnose.log.time.monotonic", lambda: clock[0])
    adapter = Trainer(4.0)
    log = TensorBoardLogger(tmp_path).attach(adapter.owner)
    for clock[0] in (1.0, 2.0, 8.0):
        adapter.run(0.25)
    assert sorted(scalars(tmp_path)) == [1, 2]
    log.close()
    assert sorted(scalars(tmp_path)) == [1, 2, 3]


def test_a_missing_tensorboardx_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(DependencyError, match=r"tensorboardX cannot be imported .*pip install '\./mxmp\[tensorboard\]'"):
        TensorBoardLogger(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    for folder in ("", None, 3):
        with pytest.raises(CheckpointError, match="^TensorBoardLogger: folder is .*; expected the folder"):
            TensorBoardLogger(folder)
    with pytest.raises(CheckpointError, match="run: its event file cannot be written: File exists"):
        TensorBoardLogger(tmp_path / "run")


def test_a_full_disk_does_not_hang(tmp_path, monkeypatch):
    monkeypatch.setattr("mxmp.diagnose.log._FLUSH_SECONDS", -1.0)
    adapter = Trainer(4.0)
    log = TensorBoardLogger(tmp_path).attach(adapter.owner)
    adapter.run(0.25)
    with files_of_at_most(10), pytest.raises(CheckpointError, match="its event file cannot be written"):
        adapter.run(0.25)
    log.close()


def test_losses_whose_gradients_were_discarded_are_not_those_of_the_step():
    weight = gluon.Parameter("w", shape=(1,))
    weight.initialize(mx.init.One())
    trainer = mxmp.gluon.Trainer({"w": weight}, "sgd", loss_scale=4.0)
    log = Listed().attach(trainer)

    def backward(factor, error=None):
        with autograd.record(), trainer.scale_loss(weight.data() * factor) as scaled:
            scaled.backward()
            if error is not None:
                raise error

    backward(1000.0)
    trainer.discard_grads()
    with pytest.raises(KeyError):
        backward(100.0, KeyError())
    backward(3.0)
    trainer.step(1)
    log.close()
    assert log.records[0].loss == 3.0
