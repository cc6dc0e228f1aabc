"""What trainers and modules say of a step that fails, from running it again; and that healthy steps keep nothing."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from mxnet.gluon.contrib.estimator import Estimator

import mxmp
from mxmp import diagnose
from mxmp.errors import LossScaleError, NonFiniteLossError, TrainerError
from mxmp.estimator import MixedPrecisionHandler
from mxmp.gluon import Trainer, convert
from mxmp.loss_scale import DynamicLossScale
from mxmp.module import BucketingModule, Module
from mxmp.train.calls import RECORDER
from tests.diagnose.failures import Applied, chain, data, ended, layer, linear

LOSS = gluon.loss.L2Loss()


def overflowing(policy="O1,op:square=float16", ctx=None, factor=300.0):
    """Return a net whose output is inf in float16."""
    net = Applied(lambda F, x: F.square(x * factor, name="sq"))
    net.initialize(mx.init.One(), ctx=ctx)
    return convert(net, policy)


def trainer_of(net, loss_scale=4.0):
    return Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3}, loss_scale=loss_scale)


def step(net, trainer, x=None, ctxs=(None,)):
    losses = []
    with autograd.record():
        for ctx in ctxs:
            each = (mx.nd.ones((4, 6)) if x is None else x).as_in_context(ctx or mx.cpu())
            losses.append(LOSS(net(each), mx.nd.zeros((4, 4), ctx=ctx)))
    with trainer.scale_loss(losses) as scaled:
        autograd.backward(scaled)
    return trainer.step(4)


@pytest.mark.parametrize(
    "flags", [None, {"active": False}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}]
)
def test_a_loss_that_is_not_finite_names_the_activation(flags):
    net = overflowing()
    if flags:
        net.hybridize(**flags)
    with pytest.raises(NonFiniteLossError, match=r"the loss itself.*Run again: activation out of range.*'net_sq'"):
        step(net, trainer_of(net))


def test_a_nan_image_is_told_from_an_overflow():
    net = overflowing(factor=1.0)
    x = data()
    x[1] = float("nan")
    with pytest.raises(NonFiniteLossError, match=r"Run again: data: input 'data' holds NaN .* in row 1"):
        step(net, trainer_of(net), x)


def test_several_contexts():
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = overflowing(ctx=contexts)
    with pytest.raises(NonFiniteLossError, match="'net_sq'"):
        step(net, trainer_of(net), ctxs=contexts)


def root(ctx=None):
    """Return a net with a finite output whose gradient is inf: sqrt at 0."""
    net = Applied(lambda F, x: F.sqrt(F.relu(x - 100), name="root") + 1)
    net.initialize(mx.init.One(), ctx=ctx)
    return convert(net, "O1")


def test_the_tenth_skip_in_a_row_is_told_with_the_operator(caplog):
    net = root()
    trainer = trainer_of(net)
    for _ in range(9):
        assert not step(net, trainer)
    assert "run again" not in caplog.text
    assert not step(net, trainer)
    assert "step 10 run again: float32 model broken" in caplog.text and "'net_root' (sqrt, float32)" in caplog.text


def test_a_scale_that_gives_up_says_why():
    net = root()
    trainer = trainer_of(net, DynamicLossScale(init_scale=1, max_floor_skips=2))
    step(net, trainer)
    with pytest.raises(LossScaleError, match=r"first bad gradient: 'net_dense0_\w+' at step 2. Run again.*'net_root'"):
        step(net, trainer)


def test_gradients_that_are_added_up():
    net = root()
    net.collect_params().setattr("grad_req", "add")
    trainer = trainer_of(net, DynamicLossScale(init_scale=1, max_floor_skips=1))
    with pytest.raises(LossScaleError, match="'net_root'"):
        step(net, trainer)


def test_a_loss_that_fails_on_finite_outputs_is_looked_for_outside_of_the_net():
    net = overflowing(factor=1.0)
    trainer = trainer_of(net)
    with autograd.record():
        loss = mx.nd.log(net(mx.nd.ones((4, 6))) - 100)
    with pytest.raises(
        NonFiniteLossError, match="Run again: all outputs of the nets are finite here: look at the loss"
    ):
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
        trainer.step(4)


def test_a_net_of_several_graphs_names_the_one_at_fault():
    class Two(gluon.Block):
        def __init__(self):
            super().__init__(prefix="two_")
            self.first, self.second = overflowing(factor=1.0), gluon.nn.Dense(2, prefix="second_")
            self.second.initialize(mx.init.Constant(3000.0))

        def forward(self, x):
            return self.second(self.first(x))

    net = convert(Two(), "O1")
    trainer = trainer_of(net)
    with autograd.record():
        loss = LOSS(net(mx.nd.ones((4, 6))), mx.nd.zeros((4, 2)))
    with pytest.raises(NonFiniteLossError, match="'second_fwd'"):
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
        trainer.step(4)


def test_a_module_says_it_too(caplog):
    x = mx.sym.sqrt(mx.sym.relu(linear(mx.sym.var("data"), "fc") - 1e4), name="root")
    module = Module(ended(x), label_names=["out_label"], loss_scale=4.0)
    module.bind([("data", (4, 6))], [("out_label", (4, 2))])
    module.init_params(mx.init.Uniform(0.1))
    module.init_optimizer()
    for _ in range(10):
        module.forward_backward(mx.io.DataBatch([mx.nd.ones((4, 6))], [mx.nd.zeros((4, 2))]))
        module.update()
    assert "step 10 run again: float32 model broken" in caplog.text and "'root' (sqrt, float32)" in caplog.text


def test_a_bucketing_module_explains_the_bucket_that_was_used():
    def make(key):
        x = mx.sym.mean(mx.sym.var("data"), axis=1) * 300
        return ended(mx.sym.square(linear(x, "fc"), name=f"square_of_{key}")), ("data",), ("out_label",)

    module = BucketingModule(make, 8, policy="O1,op:square=float16", loss_scale=4.0)
    module.bind([("data", (4, 8, 6))], [("out_label", (4, 2))])
    module.init_params(mx.init.One())
    module.init_optimizer()
    shapes = [mx.io.DataDesc("data", (4, 5, 6))], [mx.io.DataDesc("out_label", (4, 2))]
    arrays = [mx.nd.ones((4, 5, 6))], [mx.nd.zeros((4, 2))]
    batch = mx.io.DataBatch(*arrays, bucket_key=5, provide_data=shapes[0], provide_label=shapes[1])
    module.forward_backward(batch)
    with pytest.raises(NonFiniteLossError, match="'square_of_5'"):
        module.update()
    assert diagnose.find_nonfinite(module, batch).name == "square_of_5"


def test_an_explanation_that_fails_leaves_the_message_as_it_is():
    net = overflowing()
    trainer = trainer_of(net)
    trainer._scaler.explain = lambda: 1 / 0
    with pytest.raises(NonFiniteLossError) as caught:
        step(net, trainer)
    assert str(caught.value).endswith("an activation may exceed its dtype.")


def test_a_healthy_step_adds_no_operator_and_keeps_no_input():
    gc.collect()  # trainers of other tests, one of which may ask for the gradients of nets that none trains
    net, plain = overflowing(factor=1.0), overflowing(factor=1.0)
    trainer = trainer_of(net)
    x = mx.nd.ones((4, 6))
    with autograd.record():
        graphs = [autograd.get_symbol(LOSS(each(x), mx.nd.zeros((4, 4)))) for each in (net, plain)]
    counts = [len(json.loads(graph.tojson())["nodes"]) for graph in graphs]
    assert counts[0] == counts[1]
    del graphs
    step(net, trainer, x)
    before = sys.getrefcount(x)
    assert step(net, trainer, x) and sys.getrefcount(x) == before and RECORDER.of(trainer).noted == []


def test_training_imports_diagnosis_when_a_step_fails():
    code = """
import sys, mxmp, mxnet as mx
from mxnet import autograd
net = mx.gluon.nn.Dense(2, in_units=3)
net.initialize()
trainer = mxmp.gluon.Trainer(mxmp.gluon.convert(net, "O1").collect_params(), "sgd", loss_scale=4.0)
for value in 1, float("nan"):
    with autograd.record(), trainer.scale_loss(net(mx.nd.full((4, 3), value))) as scaled:
        autograd.backward(scaled)
    try:
        trainer.step(4)
    except mxmp.errors.NonFiniteLossError as e:
        print("input 'data' holds NaN" in str(e))
    print("mxmp.diagnose" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert found.stdout.split() == ["False", "True", "True"]


def test_the_step_is_the_same_bit_for_bit_when_it_is_watched():
    found = []
    for watched in (False, True):
        net = overflowing(factor=1.0)
        trainer = trainer_of(net)
        watch = diagnose.Watch().attach(trainer) if watched else None
        for seed in range(3):
            step(net, trainer, data(seed=seed))
        found.append(next(iter(net.collect_params().values())).data().asnumpy().tobytes())
        if watch is not None:
            watch.detach()
            assert RECORDER.of(trainer).watches == 0
    assert found[0] == found[1]


def test_a_watch_gives_its_verdict_after_a_skip_and_tells_how_the_step_ended():
    net = root()
    trainer = trainer_of(net)
    with diagnose.Watch(LOSS).attach(trainer) as watch:
        with pytest.raises(TrainerError, match="no step of a converted net was kept"):
            watch.verdict()
        assert not step(net, trainer)
        verdict = watch.verdict()
        assert not watch.end.taken and verdict.node.name == "net_root"
    assert verdict.to_dict()["kind"] == "float32 model broken" and str(verdict).startswith("float32 model broken: ")
    assert watch.verdict().kind == verdict.kind  # the step stays after it is detached


def test_weights_gradients_and_statistics_are_not_touched_by_a_verdict():
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(4), gluon.nn.BatchNorm())
    net.initialize()
    convert(net, "O1")
    trainer = trainer_of(net)
    with diagnose.Watch().attach(trainer) as watch:
        step(net, trainer)
        values = {name: param.data().asnumpy().tobytes() for name, param in net.collect_params().items()}
        grads = [p.grad().asnumpy().tobytes() for p in net.collect_params().values() if p.grad_req != "null"]
        assert watch.verdict().kind == "no fault found"
    assert values == {name: param.data().asnumpy().tobytes() for name, param in net.collect_params().items()}
    assert grads == [p.grad().asnumpy().tobytes() for p in net.collect_params().values() if p.grad_req != "null"]


@pytest.mark.parametrize("count", [20, 30])
def test_no_call_is_lost_where_one_step_is_looked_at(count):
    net = chain(*(layer(f"fc{number}", 1000.0 if number == 0 else 0.25) for number in range(count)))
    net.initialize()
    assert diagnose.find_nonfinite(net, mx.nd.full((2, 4), 100), "O1").name == "fc0_fwd"


def noted(most, count):
    """Return the calls of a net that are kept with a limit."""
    net = overflowing(factor=1.0)
    with RECORDER.recording([net]) as calls, autograd.record():
        calls.most = most
        for number in range(count):
            net(mx.nd.full((1, 6), number))
    return calls


def test_the_last_calls_are_kept_where_there_are_many():
    calls = noted(15, 30)
    assert [each.inputs[0].asnumpy()[0, 0] for each in calls.noted] == list(range(15, 30)) and calls.lost == 15
    assert all(each.follows_lost for each in calls.noted)


def test_nothing_is_said_of_a_step_whose_calls_are_not_all_kept():
    net = overflowing()
    trainer = trainer_of(net)
    with autograd.record():
        losses = [LOSS(net(x), mx.nd.zeros((4, 4))) for x in (mx.nd.ones((4, 6)), mx.nd.zeros((4, 6)))]
    with pytest.raises(NonFiniteLossError) as caught:
        with trainer.scale_loss(losses) as scaled:
            autograd.backward(scaled)
        trainer.step(4)
    assert "Run again" not in str(caught.value)


def test_a_noted_input_does_not_keep_the_graph_that_gave_it():
    net = overflowing(factor=1.0)
    trainer = trainer_of(net)
    x = mx.nd.ones((4, 6))
    x.attach_grad()
    with autograd.record():
        net(x * 2)
    (call,) = RECORDER.of(trainer).noted
    with pytest.raises(mx.MXNetError):
        autograd.get_symbol(call.inputs[0])


def test_a_step_that_is_explained_unasked_draws_no_random_number():
    found = []
    for explained in (True, False):
        net = Applied(lambda F, x: F.square(F.Dropout(x, p=0.5) * 300, name="sq"))
        net.initialize(mx.init.One())
        convert(net, "O1,op:square=float16")
        trainer = trainer_of(net)
        if not explained:
            trainer._scaler.explain = lambda: None
        mx.random.seed(3)
        with pytest.raises(NonFiniteLossError) as caught:
            step(net, trainer)
        assert ("'net_sq'" in str(caught.value)) == explained
        found.append(mx.nd.random.uniform(shape=(4,)).asnumpy().tobytes())
        found.append(mx.nd.Dropout(mx.nd.ones((64,)), p=0.5, mode="always").asnumpy().tobytes())
    assert found[:2] == found[2:]


def test_gradients_given_to_one_backward_of_a_module_are_not_those_of_the_next():
    module = Module(ended(linear(mx.sym.var("data"), "fc")), label_names=["out_label"], loss_scale=4.0)
    module.bind([("data", (4, 6))], [("out_label", (4, 2))])
    module.init_params(mx.init.Uniform(0.1))
    module.init_optimizer()
    module.forward(mx.io.DataBatch([mx.nd.ones((4, 6))], [mx.nd.zeros((4, 2))]), is_train=True)
    module.backward([mx.nd.ones((4, 2))])
    module.discard_grads()
    module.forward_backward(mx.io.DataBatch([mx.nd.ones((4, 6))], [mx.nd.zeros((4, 2))]))
    assert module._out_grads is None


def frozen(net):
    net.collect_params().setattr("grad_req", "null")
    return net


def through(nets, trainer, x=None, loss=LOSS):
    with autograd.record():
        for net in nets:
            x = net(mx.nd.ones((4, 6)) if x is None else x)
        losses = loss(x, mx.nd.zeros(x.shape))
    with trainer.scale_loss(losses) as scaled:
        scaled.backward()
    return trainer.step(4)


def head(name="head"):
    net = layer(name, 0.3)
    net.initialize(mx.init.One(), force_reinit=True)
    return convert(net, "O1")


RANGE = r"Run again: activation out of range.*'net_sq'"


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_frozen_net_that_overflows_is_named_and_not_taken_for_data(is_behind):
    """Behind the trained one is that of a perceptual loss, for example."""
    net = head()
    nets = [net, frozen(overflowing(factor=3000.0))] if is_behind else [frozen(overflowing()), net]
    with diagnose.Watch(LOSS).attach(trainer_of(net)) as watch:
        with pytest.raises(NonFiniteLossError, match=RANGE):
            through(nets, watch._owner, mx.nd.ones((4, 4 if is_behind else 6)))
        verdict = watch.verdict()
    assert (verdict.kind, verdict.node.name) == ("activation out of range", "net_sq")


def test_an_input_that_is_trained_through_a_frozen_net_is_explained():
    x = gluon.Parameter("image", shape=(4, 6))
    x.initialize(mx.init.One())
    trainer = Trainer([x], "sgd", loss_scale=4.0)
    with autograd.record():
        loss = LOSS(frozen(overflowing())(x.data()), mx.nd.zeros((4, 4)))
    with trainer.scale_loss(loss) as scaled:
        scaled.backward()
    with pytest.raises(NonFiniteLossError, match=RANGE):
        trainer.step(4)


def test_a_net_of_another_trainer_is_named():
    first, second = overflowing(), head()
    trainers = [trainer_of(net) for net in (first, second)]
    with pytest.raises(NonFiniteLossError, match=RANGE):
        through([first, second], trainers[1])


def test_a_nan_image_of_a_frozen_net_is_data(caplog):
    """The loss is finite, for MXNet's relu makes 0 of NaN, and the frozen net gets the image."""
    x = data((4, 6))
    x[1] = float("nan")
    net = head()
    trainer = trainer_of(net)
    with diagnose.Watch(LOSS).attach(trainer) as watch:
        with pytest.raises(NonFiniteLossError, match="Run again: data: input 'data' holds NaN in 6 of 24 elements"):
            through([frozen(overflowing(factor=1.0)), net], trainer, x)
        assert watch.verdict().kind == "data"


def test_a_net_that_the_loss_does_not_come_through_is_not_blamed():
    """Its call waits for a step of its own trainer, or for none."""
    other, unused, net = overflowing(), frozen(overflowing()), head()
    trainers = [trainer_of(each) for each in (other, net)]
    with autograd.record():
        other(mx.nd.ones((4, 6))), unused(mx.nd.ones((4, 6)))
    with pytest.raises(NonFiniteLossError) as caught:
        through([net], trainers[1], mx.nd.ones((4, 4)), lambda out, label: out / 0)
    assert "net_sq" not in str(caught.value)


def test_the_calls_of_a_frozen_net_are_kept_up_to_the_end_of_the_step():
    net, before = head(), frozen(overflowing(factor=1.0))
    trainer, x = trainer_of(net), mx.nd.ones((4, 6))
    through([before, net], trainer, x)
    count = sys.getrefcount(x)
    assert through([before, net], trainer, x) and sys.getrefcount(x) == count


def test_a_frozen_net_is_freed_with_the_last_name_of_it():
    net = head()
    trainer = trainer_of(net)
    before = frozen(overflowing(factor=1.0))
    with autograd.record():
        before(mx.nd.ones((4, 6)))
    reference = weakref.ref(before)
    del before
    gc.collect()
    assert reference() is None and trainer.skipped_steps == 0


def test_a_watch_is_an_observer_of_an_estimator_and_explains_the_last_step_after_the_fit():
    net, loss = gluon.nn.Dense(3, in_units=5, prefix="net_"), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.One())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3})
    estimator = Estimator(net, loss, mx.metric.Loss(), trainer=trainer)
    estimator.logger.handlers.clear()
    estimator.logger.propagate = False
    watch = diagnose.Watch(loss)
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(mx.nd.ones((8, 5)) * 100, mx.nd.zeros(8)), batch_size=4)
    handler = MixedPrecisionHandler("O1", loss_scale=2.0**20, observers=[watch])
    estimator.fit(data, epochs=1, event_handlers=[handler])
    assert watch.end.skipped and watch.end.number == 2
    verdict = watch.verdict()
    assert verdict.kind == "scale too high" and verdict.finite_scale < 2.0**20
    assert not loss._forward_pre_hooks and not estimator.trainer._scaler.observers


def stepped(watch, loss):
    """A net after one step of a trainer that is watched."""
    net = mxmp.gluon.convert(dense(), "O1")
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", loss_scale=256.0)
    with watch.attach(trainer):
        with mx.autograd.record():
            value = loss(net(mx.nd.ones((4, 5))), mx.nd.zeros(4))
            with trainer.scale_loss(value) as scaled:
                scaled.backward()
        trainer.step(4)
    return net


def dense():
    net = gluon.nn.Dense(3, in_units=5, prefix="net_")
    net.initialize(mx.init.One())
    return net


def test_a_verdict_is_of_the_weights_that_are_there_when_it_is_asked_for():
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    watch = diagnose.Watch(loss)
    net = stepped(watch, loss)
    assert watch.verdict().kind == "no fault found"

    net.weight.set_data(mx.nd.full((3, 5), float("nan")))

    verdict = watch.verdict()
    assert (verdict.kind, verdict.node.name) == ("parameters", "net_weight")
    assert verdict.text.startswith("the step is finite, but parameter 'net_weight' holds NaN in 15 of 15 elements.")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda trainer: diagnose.Watch().attach(3), "expected a trainer or module"),
        (lambda trainer: diagnose.Watch(3), "loss is a int; expected a Block"),
        (diagnose.Watch, r"loss is a Trainer; .* to attach: Watch\(loss\)\.attach\(trainer\)\."),
        (lambda trainer: diagnose.Watch(lambda out: out), "loss is a function; .*as those of a function cannot be"),
    ],
)
def test_what_cannot_be_watched_is_refused(make, message):
    with pytest.raises(TrainerError, match=message):
        make(trainer_of(overflowing()))
