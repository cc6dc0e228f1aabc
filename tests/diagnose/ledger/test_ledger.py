"""What a ledger counts in a run, against numpy; sampling, skips, and that the run is not changed."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp.diagnose import Ledger
from mxmp.errors import DtypeError, LossScaleError, NonFiniteLossError, TrainerError
from mxmp.loss_scale import DynamicLossScale
from tests.diagnose.ledger.runs import Run, layers
from tests.freeze import freeze
from tests.train.adapters import ADAPTERS

OVER_FRONTS = pytest.mark.parametrize("make", ADAPTERS, ids=lambda make: make.__name__)

GRADS = {
    "conv_weight": np.float16([[0, 0, 2.0**-24, -(2.0**-15)], [1, -2, 3, -40000]]),
    "fc_bias": np.float16([0, 0, 0, 2.0**-14, 6e-5]),
}
SHAPES = {name: values.shape for name, values in GRADS.items()}


def expected(values):
    """Return the shares and the histogram of float16 or float32 values."""
    values = np.abs(values.astype(np.float64)).ravel()
    found = [int(np.floor(np.log2(each))) for each in values if each]
    return {
        "zero_share": np.mean(values == 0),
        "subnormal_share": np.mean((values > 0) & (values < 2.0**-14)),
        "largest": values.max(),
        "histogram": {str(each): found.count(each) for each in sorted(set(found))},
    }


def is_as(layer, values):
    found = expected(values)
    return layer["histogram"] == found.pop("histogram") and {key: layer[key] for key in found} == pytest.approx(found)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_each_parameter_is_counted(dtype):
    run = Run(SHAPES, dict.fromkeys(SHAPES, dtype))
    ledger = Ledger(every=1).attach(run.trainer)
    run.step(GRADS)
    found = layers(ledger)
    assert list(found) == list(SHAPES) and all(is_as(found[name], GRADS[name]) for name in SHAPES)
    assert [found[name]["elements"] for name in SHAPES] == [8, 5]


def test_parameters_of_several_dtypes_are_counted_together():
    run = Run(SHAPES, {"fc_bias": "float32"})
    ledger = Ledger(every=1).attach(run.trainer)
    run.step(GRADS)
    assert all(is_as(layers(ledger)[name], GRADS[name]) for name in SHAPES)


def test_samples_add_up():
    run = Run({"w": (4,)})
    ledger = Ledger(every=1).attach(run.trainer)
    given = np.float16([[0, 1, 2, 2.0**-20], [0, 0, 0, 8]])
    for values in given:
        run.step({"w": values})
    assert is_as(layers(ledger)["w"], given)


def test_contexts_are_counted_each_for_itself_before_they_are_summed():
    run = Run({"w": (2,)}, contexts=2)
    ledger = Ledger(every=1).attach(run.trainer)
    given = np.float16([[1, -1], [-1, 0]])
    run.step({"w": list(given)})
    assert is_as(layers(ledger)["w"], given)
    assert layers(ledger)["w"]["elements"] == 2


def test_gradients_that_accumulate_are_counted_as_they_add_up():
    param = mx.gluon.Parameter("w", shape=(3,), grad_req="add")
    param.initialize(mx.init.One())
    trainer = mxmp.gluon.Trainer([param], "sgd", loss_scale=2.0)
    ledger = Ledger(every=1).attach(trainer)
    for factor in ([1, 0, 0], [3, 0, 0.5]):
        with mx.autograd.record():
            loss = (param.data() * mx.nd.array(factor)).sum()
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
    trainer.step(1)
    assert is_as(layers(ledger)["w"], np.float32([8, 0, 1]))


def test_the_stored_rows_of_a_row_sparse_gradient_are_counted():
    net = mx.gluon.nn.Embedding(50, 2, sparse_grad=True)
    net.initialize()
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", loss_scale=4.0)
    ledger = Ledger(every=1).attach(trainer)
    with mx.autograd.record():
        loss = (net(mx.nd.array([3, 7, 7])) * mx.nd.array([1, 0])).sum()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
    trainer.step(1)
    (layer,) = layers(ledger).values()
    assert is_as(layer, np.float32([[4, 0], [8, 0]]))
    assert layer["elements"] == 100


# ---------------------------------------------------------------------- sampling


def test_one_step_in_so_many_is_a_sample():
    run = Run({"w": (1,)})
    ledger = Ledger(every=3).attach(run.trainer)
    for step in range(8):
        run.step({"w": 2.0**step})
    assert layers(ledger)["w"]["histogram"] == {"0": 1, "3": 1, "6": 1}
    assert (ledger.steps, ledger.sampled, ledger.skipped) == (8, 3, 0)


def test_a_sample_that_is_skipped_is_made_up_for_by_the_next_step():
    run = Run({"w": (1,)})
    ledger = Ledger(every=3).attach(run.trainer)
    for value in (np.inf, 1, 2, 4, 8):
        run.step({"w": value})
    assert layers(ledger)["w"]["histogram"] == {"0": 1, "3": 1}
    assert (ledger.steps, ledger.sampled, ledger.skipped) == (5, 2, 1)


def test_shares_are_those_of_the_last_sample():
    run = Run(SHAPES)
    ledger = Ledger(every=1).attach(run.trainer)
    assert ledger.shares() == {}
    for grads in (dict.fromkeys(SHAPES, 1.0), GRADS):
        run.step(grads)
    every = np.concatenate([values.ravel() for values in GRADS.values()])
    assert ledger.shares() == {key: pytest.approx(expected(every)[key]) for key in ledger.shares()}
    assert sorted(ledger.shares()) == ["largest", "subnormal_share", "zero_share"]


def test_counts_of_a_gpu_are_read_a_sample_later(monkeypatch):
    reads = []
    take = mxmp.diagnose.ledger.sample.count_exponents

    def count(arrays):
        read = take(arrays)
        return lambda: reads.append(len(arrays)) or read()

    monkeypatch.setattr(mxmp.diagnose.ledger.sample, "count_exponents", count)
    monkeypatch.setattr(mxmp.diagnose.ledger.sample, "on_gpu", lambda _: True)
    run = Run({"w": (1,)})
    ledger = Ledger(every=2).attach(run.trainer)
    noted = []
    for step in range(5):
        run.step({"w": 2.0**step})
        noted.append((len(reads), ledger.shares().get("largest")))
    assert noted == [(0, None), (0, None), (1, 1.0), (1, 1.0), (2, 4.0)]
    assert layers(ledger)["w"]["largest"] == 16.0


# ---------------------------------------------------------------------- skips


def test_the_gradient_with_the_smallest_share_that_is_not_finite_is_the_first_of_a_skip():
    run = Run({"first": (4,), "second": (4,), "third": (4,)})
    ledger = Ledger(every=1).attach(run.trainer)
    bad = {"first": np.nan, "second": np.float16([np.inf, 1, 1, 1]), "third": 1.0}
    assert not run.step(bad)
    found = layers(ledger)
    assert [found[name]["skips"] for name in ("first", "second")] == [0, 1]
    assert [found[name]["nonfinite"] for name in ("first", "second")] == [1, 1]
    assert (found["third"]["skips"], found["third"]["nonfinite"], found["third"]["elements"]) == (0, 0, 4)


def test_skips_are_those_of_the_trainer():
    """A skip at which the scale gives up is one, a step whose loss is not finite is not, nor a reason for advice."""
    adapter = ADAPTERS[0](DynamicLossScale(init_scale=1, max_floor_skips=1))
    ledger = Ledger(every=1).attach(adapter.owner)
    adapter.backward(np.nan)
    with pytest.raises(NonFiniteLossError):
        adapter.step()
    assert ledger.skipped == adapter.owner.skipped_steps == 0 and ledger.to_dict()["scales"] == {}
    assert "0 of 1 steps were skipped" in ledger.summary
    with pytest.raises(LossScaleError):
        adapter.run(0.25, bad=np.inf)
    assert ledger.skipped == adapter.owner.skipped_steps == 1


def test_all_with_the_smallest_share_are_first():
    run = Run({"first": (1,), "second": (2,)}, contexts=2)
    ledger = Ledger(every=1).attach(run.trainer)
    run.step({"first": [np.nan, 1], "second": [np.nan, np.nan]})
    assert {name: layer["skips"] for name, layer in layers(ledger).items()} == {"first": 1, "second": 1}


# ---------------------------------------------------------------------- updates


@pytest.mark.parametrize("rate", [0.001, 0.1])
def test_an_update_is_lost_where_the_weight_stays_what_it_was(rate):
    run = Run({"w": (3,)}, learning_rate=rate, multi_precision=False)
    ledger = Ledger(every=1).attach(run.trainer)
    grads = np.float32([0.1, 0, 4])  # true ones; half a bit of 1.0 is 2**-11 above it, 2**-12 below
    run.step({"w": grads * 1024})
    moved = np.float16(1) - np.float16(rate) * grads.astype(np.float16) != 1
    assert layers(ledger)["w"]["lost_update_share"] == 1 - np.mean(moved[grads != 0])


def test_no_update_is_lost_with_masters_or_in_float32():
    for options in ({"dtypes": None, "multi_precision": True}, {"dtypes": {"w": "float32"}, "multi_precision": False}):
        run = Run({"w": (2,)}, learning_rate=1e-6, **options)
        ledger = Ledger(every=1).attach(run.trainer)
        run.step({"w": 1.0})
        assert layers(ledger)["w"]["lost_update_share"] is None


# ---------------------------------------------------------------------- fronts


@OVER_FRONTS
def test_every_front_is_looked_at_in_one_line(make):
    adapter = make(DynamicLossScale(init_scale=4, growth_interval=100), dtype="float16")
    ledger = Ledger(every=1).attach(adapter.owner)
    adapter.run(0.25)
    adapter.run(0.25, bad=np.inf)
    found = ledger.to_dict()
    assert (found["steps"], found["sampled"], found["skipped"]) == (2, 1, 1)
    assert [layer["histogram"] for layer in found["layers"]] == [{"0": 2}, {"0": 1}]
    assert [layer["name"] for layer in found["layers"]] in (["a", "b"], ["a_weight", "b_weight"])
    assert [layer["skips"] for layer in found["layers"]] == [1, 0]


@OVER_FRONTS
@pytest.mark.parametrize("masters", [True, False])
def test_no_bit_of_the_training_changes(make, masters):
    def trained(looks):
        options = {"learning_rate": 0.01, "momentum": 0.9, "multi_precision": masters}
        adapter = make(DynamicLossScale(init_scale=4, growth_interval=2), options=options, dtype="float16", contexts=2)
        if looks:
            Ledger(every=1).attach(adapter.owner)
        for bad in (None, np.inf, None):
            adapter.run([0.25, 0.1], bad=bad)
        return freeze(adapter.weights()), adapter.trace(), adapter.scale

    assert trained(True) == trained(False)


def test_gradients_are_left_as_they_are():
    run = Run(SHAPES)
    Ledger(every=1).attach(run.trainer)
    run.step(GRADS)
    for param in run.params:
        np.testing.assert_array_equal(param.grad().asnumpy(), GRADS[param.name])


def test_a_module_may_be_attached_before_it_is_bound():
    module = mxmp.module.Module(
        mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="fc"), name="y"),
        label_names=["y_label"],
    )
    ledger = Ledger(every=2).attach(module)
    data = mx.io.NDArrayIter(mx.nd.ones((8, 3)), mx.nd.ones((8, 1)), batch_size=2, label_name="y_label")
    module.fit(data, num_epoch=1, eval_metric="mse")
    assert (ledger.steps, ledger.sampled) == (4, 2)
    assert list(layers(ledger)) == ["fc_weight", "fc_bias"]


def test_an_estimator_is_given_the_ledger_with_its_handler():
    adapter = next(make for make in ADAPTERS if make.__name__ == "Fit")()
    ledger = Ledger(every=1)
    adapter.handler = mxmp.estimator.MixedPrecisionHandler("float32", adapter.given, observers=[ledger])
    adapter.run()
    adapter.run()
    assert (ledger.steps, ledger.sampled) == (2, 2)


def test_an_observer_that_cannot_be_attached_is_refused():
    with pytest.raises(TrainerError, match="observers holds a str, which has no attach; expected a Ledger"):
        mxmp.estimator.MixedPrecisionHandler("O1", observers=["ledger"])


# ---------------------------------------------------------------------- attach and detach


def test_a_ledger_that_is_detached_keeps_what_it_saw():
    run = Run({"w": (1,)})
    ledger = Ledger(every=1).attach(run.trainer)
    run.step({"w": 1.0})
    ledger.detach()
    ledger.detach()
    run.step({"w": 1.0})
    assert (ledger.steps, layers(ledger)["w"]["histogram"]) == (1, {"0": 1})


def test_a_ledger_is_detached_at_the_end_of_its_block():
    run = Run({"w": (1,)})
    with pytest.raises(ZeroDivisionError), Ledger(every=1).attach(run.trainer) as ledger:
        run.step({"w": 1.0})
        raise ZeroDivisionError
    run.step({"w": 1.0})
    assert ledger.steps == 1


def test_a_trainer_is_attached_once():
    run, other = Run({"w": (1,)}), Run({"w": (1,)})
    ledger = Ledger(every=1).attach(run.trainer)
    assert ledger.attach(run.trainer) is ledger
    run.step({"w": 1.0})
    assert ledger.steps == 1
    with pytest.raises(TrainerError, match="^attach: this Ledger is attached to another Trainer; detach it first, or"):
        ledger.attach(other.trainer)
    ledger.detach()
    ledger.attach(other.trainer)
    other.step({"w": 1.0})
    assert ledger.steps == 2


def test_gradients_that_are_discarded_are_no_step():
    run = Run({"w": (1,)})
    ledger = Ledger(every=2).attach(run.trainer)
    with run.trainer.scale_loss(mx.nd.ones((1,))):
        pass
    run.params[0].data()._fresh_grad = True
    run.trainer.unscale()
    run.trainer.discard_grads()
    run.step({"w": 4.0})
    assert (ledger.steps, ledger.sampled) == (1, 1)
    assert layers(ledger)["w"]["histogram"] == {"2": 1}


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2", None])
def test_every_must_be_a_positive_integer(every):
    with pytest.raises(TrainerError, match="every=.*; expected a positive number of steps"):
        Ledger(every=every)


def test_the_dtype_must_be_one_of_low_precision():
    with pytest.raises(DtypeError, match="dtype='float32'; expected 'float16' or 'bfloat16'"):
        Ledger(dtype="float32")


def test_what_is_no_trainer_is_refused():
    ledger = Ledger()
    with pytest.raises(TrainerError, match="expected a trainer, a module or a LossScaleOptimizer"):
        ledger.attach(object())
    run = Run({"w": (1,)})
    assert ledger.attach(run.trainer) is ledger
