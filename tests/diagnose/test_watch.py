"""What trainers and modules say of a step that fails, from running it again; and that healthy steps keep nothing."""

import copy
import gc
import pickle
import sys
import weakref
from contextlib import nullcontext

import mxnet as mx
import pytest
from mxnet import autograd, gluon

from mxmp import diagnose
from mxmp.errors import LossScaleError, NonFiniteLossError, TrainerError
from mxmp.estimator import MixedPrecisionHandler
from mxmp.gluon import convert
from mxmp.loss_scale import DynamicLossScale
from tests.diagnose import nets
from tests.diagnose.nets import (
    L2,
    SOFTMAX,
    Applied,
    bucket,
    buckets,
    chain,
    classifier,
    data,
    ended,
    estimator_of,
    forward_and_update,
    layer,
    linear,
    made,
    module_of,
    state,
    trainer_of,
    where,
)

ONES, ZEROS = mx.nd.ones((4, 6)), mx.nd.zeros((4, 4))
RANGE = r"Run again: activation out of range.*'net_sq'"


def applied(function, policy, ctx=None):
    net = Applied(function)
    net.initialize(mx.init.One(), ctx=ctx)
    return convert(net, policy)


def overflowing(ctx=None, factor=300.0):
    return applied(lambda F, x: F.square(x * factor, name="sq"), "O1,op:square=float16", ctx)


def root():
    """Return a net with a finite output whose gradient is inf: sqrt at 0."""
    return applied(lambda F, x: F.sqrt(F.relu(x - 100), name="root") + 1, "O1")


def frozen(net):
    net.collect_params().setattr("grad_req", "null")
    return net


def head():
    return convert(made(layer("head", 1.0)), "O1")


def loss_of(nets, x=ONES):
    for net in nets:
        x = net(x)
    return L2(x, mx.nd.zeros(x.shape, ctx=x.ctx))


def step(net, trainer, x=ONES):
    return nets.step(trainer, lambda: loss_of([net], x))


def fails(text, trainer, loss, error=NonFiniteLossError):
    with pytest.raises(error, match=text):
        nets.step(trainer, loss)


def hybridized(net, **flags):
    net.hybridize(**flags)
    return net


CONTEXTS = [mx.cpu(0), mx.cpu(1)]
FAILING = {  # nets that follow each other, each with a trainer, the loss of a step of the last one, and what is said
    "not hybridized": (lambda: [hybridized(overflowing(), active=False)], loss_of, f"the loss itself.*{RANGE}"),
    "static": (lambda: [hybridized(overflowing(), static_alloc=True, static_shape=True)], loss_of, f"the loss itself.*{RANGE}"),
    "several contexts": (
        lambda: [overflowing(CONTEXTS)], lambda several: [loss_of(several, ONES.as_in_context(ctx)) for ctx in CONTEXTS], RANGE
    ),
    "outside of the net": (
        lambda: [overflowing(factor=1.0)], lambda several: mx.nd.log(several[0](ONES) - 100),
        "Run again: the outputs of the trainer's nets are finite here: look at the loss",
    ),
    "not all calls are kept": (
        lambda: [overflowing()], lambda several: [loss_of(several, x) for x in (ONES, ONES * 0)], "^((?!Run again).)*$"
    ),
    "a net of another trainer": (
        lambda: [overflowing(), head()], lambda several: loss_of(several[::-1], ONES[:, :4]),
        "the outputs of the trainer's nets are finite here: look at the loss, at its labels, and at other nets",
    ),
}  # fmt: skip


@pytest.mark.parametrize("make, loss, text", FAILING.values(), ids=FAILING.keys())
def test_a_loss_that_is_not_finite_names_the_activation_if_it_can(make, loss, text):
    several = make()
    trainers = [trainer_of(net) for net in several]
    fails(text, trainers[-1], lambda: loss(several))


@pytest.mark.parametrize("of_module", [False, True], ids=["trainer", "module"])
def test_the_tenth_skip_in_a_row_is_told_with_the_operator(of_module, caplog):
    net = root()
    trainer, x = trainer_of(net), mx.sym.sqrt(mx.sym.relu(linear(mx.sym.var("data"), "fc") - 1e4), name="net_root")
    module, batch = module_of(ended(x), loss_scale=4.0), mx.io.DataBatch([ONES], [mx.nd.zeros((4, 2))])
    for _ in range(10):
        assert "run again" not in caplog.text and not (forward_and_update(module, batch) if of_module else step(net, trainer))
    assert "step 10 run again: float32 model broken" in caplog.text and "'net_root' (sqrt, float32)" in caplog.text


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_a_scale_that_gives_up_says_why(grad_req):
    net = root()
    net.collect_params().setattr("grad_req", grad_req)
    trainer = trainer_of(net, DynamicLossScale(init_scale=1, max_floor_skips=2))
    step(net, trainer)
    said = r"first bad gradient: 'net_dense0_\w+' at step 2. Run again.*'net_root'"
    fails(said, trainer, lambda: loss_of([net]), LossScaleError)


def test_a_bucketing_module_explains_the_bucket_that_was_used():
    def squared(x, key):
        return mx.sym.square(linear(x * 300, "fc"), name=f"square_of_{key}")

    module = buckets(squared, policy="O1,op:square=float16", loss_scale=4.0, params={"fc_weight": 1.0})
    batch = bucket(mx.nd.ones((4, 5, 6)))
    with pytest.raises(NonFiniteLossError, match="'square_of_5'"):
        forward_and_update(module, batch)
    assert where(module, batch).name == "square_of_5"


def test_an_explanation_that_fails_leaves_the_message_as_it_is(monkeypatch):
    net = overflowing()
    trainer = trainer_of(net)
    monkeypatch.setattr("mxmp.diagnose.watch.explain_step", lambda owner: 1 / 0)
    fails(r"an activation may exceed its dtype\.$", trainer, lambda: loss_of([net]))


# ---------------------------------------------------------------------- what a step keeps


@pytest.mark.parametrize("is_behind", [False, True], ids=["", "a frozen net"])
def test_a_healthy_step_keeps_no_input(is_behind):
    net, x = overflowing(factor=1.0), mx.nd.ones((4, 6))
    several = [frozen(net), head()] if is_behind else [net]
    trainer = trainer_of(several[-1])
    nets.step(trainer, lambda: loss_of(several, x))
    before = sys.getrefcount(x)
    assert nets.step(trainer, lambda: loss_of(several, x)) and sys.getrefcount(x) == before


def test_the_step_is_the_same_bit_for_bit_when_it_is_watched():
    found = []
    for watched in (False, True):
        net = overflowing(factor=1.0)
        trainer = trainer_of(net)
        with diagnose.Watch().attach(trainer) if watched else nullcontext():
            for seed in range(3):
                step(net, trainer, data(seed=seed))
        found.append(net.dense.weight.data().asnumpy().tobytes())
    assert found[0] == found[1] and not trainer._scaler.observers


def test_weights_gradients_and_statistics_are_not_touched_by_a_verdict():
    net = convert(classifier(), "O1")
    with diagnose.Watch().attach(trainer_of(net)) as watch:
        step(net, watch._owner, data((4, 5)))
        before = state(net)
        assert watch.verdict().kind == "no fault found" and state(net) == before


def test_no_call_is_lost_where_one_step_is_looked_at():
    net = chain(*(layer(f"fc{number}", 1000.0 if number == 0 else 0.25) for number in range(30)), gluon.nn.Sequential())
    assert where(made(net), mx.nd.full((2, 4), 100), "O1").name == "fc0_fwd"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
def test_a_net_may_be_copied_between_a_call_and_its_step(copied):
    net = head()
    trainer = trainer_of(net)
    with autograd.record():
        net(ONES[:, :4])
    assert copied(net)(ONES[:, :4]).shape == (4, 4) and step(net, trainer, ONES[:, :4])


def test_a_step_that_is_explained_unasked_draws_no_random_number():
    drawn = []
    for explained in (True, False):
        net = applied(lambda F, x: F.square(F.Dropout(x, p=0.5) * 300, name="sq"), "O1,op:square=float16")
        trainer = trainer_of(net)
        trainer._scaler.stepping = trainer._scaler.stepping if explained else ()
        mx.random.seed(3)
        fails("'net_sq'" if explained else "^((?!net_sq).)*$", trainer, lambda net=net: loss_of([net]))
        drawn += [mx.nd.random.uniform(shape=(4,)), mx.nd.Dropout(mx.nd.ones((64,)), p=0.5, mode="always")]
    assert [array.asnumpy().tobytes() for array in drawn[:2]] == [array.asnumpy().tobytes() for array in drawn[2:]]


def test_gradients_given_to_one_backward_of_a_module_are_not_those_of_the_next():
    module, batch = module_of(ended(linear(mx.sym.var("data"), "fc")), loss_scale=4.0), mx.io.DataBatch([ONES], [ZEROS[:, :2]])
    module.forward(batch, is_train=True)
    module.backward([mx.nd.full((4, 2), float("inf"))])
    module.discard_grads()
    with diagnose.Watch().attach(module) as watch:
        assert forward_and_update(module, batch)
        assert watch.verdict().kind == "no fault found"


# ---------------------------------------------------------------------- nets that the trainer does not train


@pytest.mark.parametrize(
    "makes, x, watching, text",
    [
        ([overflowing, head], ONES, nullcontext, "data: input 'data' holds inf in 16 .*at other nets that it came through"),
        ([head, overflowing], ONES[:, :4], nullcontext, "finite here: look at the loss, .*at other nets that it comes through"),
        ([head, overflowing], ONES[:, :4], diagnose.Watch(L2).attach, "The loss is computed outside .*at other nets"),
    ],
    ids=["before", "behind, as of a perceptual loss", "behind, watched"],
)  # fmt: skip
def test_of_a_frozen_net_that_overflows_nothing_is_said(makes, x, watching, text):
    several = [head() if make is head else frozen(make()) for make in makes]
    trainer = trainer_of(several[makes.index(head)])
    with watching(trainer):
        fails(f"Run again: ((?!net_sq).)*{text}", trainer, lambda: loss_of(several, x))


def test_a_net_that_the_loss_does_not_come_through_is_not_blamed():
    """Its call waits for a step of its own trainer, or for none."""
    other, unused, net = overflowing(), frozen(overflowing()), head()
    trainers = [trainer_of(each) for each in (other, net)]
    with autograd.record():
        other(ONES), unused(mx.nd.ones((4, 6)))
    fails("^((?!net_sq).)*$", trainers[1], lambda: net(mx.nd.ones((4, 4))) / 0)


def test_a_frozen_net_that_is_called_without_a_step_is_freed():
    net, trainer = frozen(overflowing(factor=1.0)), trainer_of(head())
    with autograd.record():
        net(ONES)
    reference = weakref.ref(net)
    del net
    gc.collect()
    assert reference() is None and trainer.skipped_steps == 0


def test_a_penalty_by_hand_is_named_where_the_nets_own_gradients_are_finite(caplog):
    net, x = head(), mx.nd.ones((4, 4))
    trainer = trainer_of(net, 4.0)

    def loss():
        return loss_of([net], x) + (net.weight.data() * 1e-30).sqrt().sum() * (net.weight.data() - 1).abs().sqrt().sum()

    with diagnose.Watch().attach(trainer) as watch:
        assert not nets.step(trainer, loss)
        assert "that of 'head_weight' is not" in str(watch.verdict()) and "a penalty" in str(watch.verdict())
    for _ in range(9):
        nets.step(trainer, loss)
    assert "step 10 run again" in caplog.text and "a penalty that is added by hand" in caplog.text


# ---------------------------------------------------------------------- a watch


def test_a_watch_gives_its_verdict_after_a_skip_and_tells_how_the_step_ended():
    net = root()
    trainer = trainer_of(net)
    with diagnose.Watch(L2).attach(trainer) as watch:
        with pytest.raises(TrainerError, match="no step of a converted net was kept"):
            watch.verdict()
        assert not step(net, trainer)
        verdict = watch.verdict()
        assert not watch.end.taken and verdict.node.name == "net_root"
    assert verdict.to_dict()["kind"] == "float32 model broken" and str(verdict).startswith("float32 model broken: ")
    assert watch.verdict().kind == verdict.kind  # the step stays after it is detached


def test_a_watch_is_an_observer_of_an_estimator_and_explains_the_last_step_after_the_fit():
    net, watch = made(layer("net", 1.0)), diagnose.Watch(SOFTMAX)
    estimator = estimator_of(net, gluon.Trainer(net.collect_params(), "sgd"), SOFTMAX)
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(mx.nd.ones((8, 4)) * 100, mx.nd.zeros(8)), batch_size=4)
    estimator.fit(loader, epochs=1, event_handlers=[MixedPrecisionHandler("O1", loss_scale=2.0**20, observers=[watch])])
    assert watch.end.skipped and watch.end.number == 2
    verdict = watch.verdict()
    assert verdict.kind == "scale too high" and verdict.finite_scale < 2.0**20
    assert not SOFTMAX._forward_pre_hooks and not estimator.trainer._scaler.observers


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_verdict_is_of_the_weights_that_are_there_when_it_is_asked_for(policy):
    """Also of a weight in float16 that was written to past its master."""
    net = convert(made(layer("head", 1.0)), policy)
    with diagnose.Watch(SOFTMAX).attach(trainer_of(net, 256.0)) as watch:
        nets.step(watch._owner, lambda: SOFTMAX(net(mx.nd.ones((4, 4))), mx.nd.zeros(4)))
    assert watch.verdict().kind == "no fault found"
    net.weight.data()[:] = float("nan")
    verdict = watch.verdict()
    assert (verdict.kind, verdict.node.name) == ("parameters", "head_weight")
    assert verdict.text.startswith("parameter 'head_weight' holds NaN in 16 of 16 elements.")


def test_a_step_is_run_again_on_the_float32_masters_of_its_weights():
    """A weight beyond float16 is inf as it is stored; its master says by how much."""
    net = convert(made(layer("n", 1.0)), "O2")
    net(ONES[:, :4])
    trainer = trainer_of(net)
    net.weight.set_data(mx.nd.full((4, 4), 1e5))
    text = "Run again: .*'n_weight' is inf in float16 in 16 of 16 elements: it reaches 1e.05"
    fails(text, trainer, lambda: loss_of([net], ONES[:, :4]))
