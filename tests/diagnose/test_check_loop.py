"""What is wrong with a loop is found, in healthy loops nothing, and all is as before."""

from __future__ import annotations

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose import CSVLogger, Ledger, LoopFindings, Watch, check_loop, checking
from mxmp.errors import TrainerError
from mxmp.loss_scale import DynamicLossScale
from tests.diagnose.nets import SOFTMAX, backward, step, trainer_of

RNG = np.random.RandomState(0)
DATA, LABELS = mx.nd.array(RNG.randn(8, 16)), mx.nd.array(RNG.randint(0, 8, 8))
RATES = {"learning_rate": 0.1, "momentum": 0.9}


def made(*layers, prefix="net_", init=None):
    mx.random.seed(0)
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(*(each() for each in layers))
    net.initialize(mx.init.Xavier() if init is None else init)
    return net


def dense(units, inputs, **options):
    return lambda: nn.Dense(units, in_units=inputs, **options)


def make(policy="O1", hybridized=False, prefix="net_"):
    net = made(dense(8, 16), lambda: nn.BatchNorm(in_channels=8), dense(8, 8), prefix=prefix)
    net.hybridize(hybridized)
    return mxmp.gluon.convert(net, policy) if policy else net


def ours(net, loss_scale=64.0):
    return trainer_of(net, loss_scale, **RATES)


def plain(net, **options):
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, **options})


class Loop:
    """A step that is right; each part can be replaced by a function of the loop, and the trainer be made otherwise."""

    def __init__(self, policy="O1", data=DATA, label=LABELS, net=None, trainer=ours, **parts):
        self.net = make(policy) if net is None else net
        self.trainer, self.data, self.label = trainer(self.net), data, label
        self.parts = {"loss": Loop.loss, "backward": scaled, "clip": None, "step": Loop.step, "after": None, **parts}

    def loss(self):
        return SOFTMAX(self.net(self.data), self.label)

    def step(self):
        self.trainer.step(self.data.shape[0])

    def __call__(self):
        for name in ("backward", "clip", "step", "after"):
            if self.parts[name] is not None:
                self.parts[name](self)

    def weights(self):
        return [param.data().asnumpy() for param in self.net.collect_params().values()]

    def gradients(self):
        return [param.grad() for param in self.net.collect_params().values() if param.grad_req != "null"]

    def check(self, speed=False):
        return check_loop(self.net, self.trainer, self, speed)


def scaled(loop):
    backward(loop.trainer, lambda: loop.parts["loss"](loop))


# ------------------------------------------------------------------ wrong loops


def recorded(loop, then=lambda loop, loss: None, **options):
    """Record the loss and do something with it, in place of a scaled backward."""
    with autograd.record(**options):
        loss = loop.loss()
    then(loop, loss)


def scaling(then):
    """Return a function that scales a loss, and does something with that of the loop and the scaled one."""

    def act(loop, loss):
        with loop.trainer.scale_loss(loss) as scaled_loss:
            then(loss, scaled_loss)

    return act


def of(then, **options):
    return lambda loop: recorded(loop, then, **options)


unscaled = of(lambda loop, loss: loss.backward())
scaled_backward = scaling(lambda loss, scaled_loss: scaled_loss.backward())


def whole_step_recorded(loop):
    with autograd.record():
        scaled_backward(loop, loop.loss())
        loop.trainer.step(8)


def nothing(loop):
    """Do nothing."""


def with_grad_req(loop, grad_req, *params):
    """Return the loop, whose parameters, or some of them, have another grad_req."""
    for param in params or loop.net.collect_params().values():
        param.grad_req = grad_req
    return loop


class Partly(gluon.HybridBlock):
    """Two layers, of which a function makes an output."""

    def __init__(self, function, inputs=16, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first, self.second = nn.Dense(8, in_units=16), nn.Dense(8, in_units=inputs)
        self.function = function
        self.initialize()

    def hybrid_forward(self, F, x):
        return self.function(self, F, x)


def with_unused_layer():
    return Loop(net=Partly(lambda net, F, x: net.first(x), prefix="partly_"))


def low_norm():
    loop = Loop(None, backward=nothing, step=nothing)
    loop.net[1].gamma.cast("float16")
    return loop


def cast_by_hand():
    net = make(None)
    net.cast("float16")
    return Loop(net=net, trainer=lambda net: plain(net, multi_precision=True), data=DATA.astype("float16"), backward=unscaled)


def plain_under(policy, backward=unscaled, **parts):
    return Loop(policy, trainer=plain, backward=backward, **parts)


def multiplied(loop, number, factor):
    loop.net[number].weight.set_data(loop.net[number].weight.data() * factor)
    return loop


def scale_of(value):
    return lambda net: ours(net, value)


HIGHEST = DynamicLossScale(init_scale=2.0**60, max_scale=2.0**60)
ANOTHER = make(prefix="another_")


def on_another_net(loop):
    backward(loop.trainer, lambda: SOFTMAX(ANOTHER(loop.data), loop.label))


WRONG = {
    "no_backward": lambda: Loop(backward=recorded),
    "no_backward of a scaled loss": lambda: Loop(backward=of(scaling(lambda loss, scaled_loss: None))),
    "no_backward without a scale": lambda: Loop(trainer=scale_of(None), backward=recorded),
    "no_backward of a plain trainer": lambda: plain_under(None, recorded),
    "never_called": lambda: Loop(backward=on_another_net),
    "never_called at all": lambda: plain_under(None, nothing),
    "weights_not_finite": lambda: multiplied(Loop(), 0, np.nan),
    "weights_not_finite in float16": lambda: multiplied(Loop("O2"), 0, np.nan),
    "weights_not_finite without a scale": lambda: multiplied(Loop(trainer=scale_of(None)), 2, np.nan),
    "weights_not_finite after steps": lambda: plain_under(None, after=lambda loop: multiplied(loop, 0, np.inf)),
    "plain_trainer": lambda: plain_under("O1"),
    "plain_trainer of O2": lambda: plain_under("O2"),
    "loss_not_scaled": lambda: Loop(backward=unscaled),
    "loss_not_scaled unused": lambda: Loop(backward=of(scaling(lambda loss, scaled_loss: loss.backward()))),
    "zero_grad_missing": lambda: with_grad_req(Loop(), "add"),
    "no_gradient": with_unused_layer,
    "not_recorded": lambda: Loop(None, backward=lambda loop: scaled_backward(loop, loop.loss())),
    "not_training": lambda: Loop(backward=of(scaled_backward, train_mode=False)),
    "loss_precision": lambda: Loop(loss=lambda loop: SOFTMAX(loop.net(loop.data).astype("float16"), loop.label)),
    "step_recorded": lambda: Loop(backward=whole_step_recorded, step=nothing),
    "schedule_on_skip": lambda: Loop(trainer=scale_of(HIGHEST), after=lambda loop: loop.trainer.set_learning_rate(0.05)),
    "norm_precision": low_norm,
    "cast_by_hand": cast_by_hand,
    "float64_data": lambda: Loop(data=DATA.astype("float64")),
    "loss_not_finite": lambda: Loop(data=DATA * np.nan),
    "steps_skipped": lambda: Loop(trainer=scale_of(2.0**100)),
    "no_step": lambda: Loop(step=lambda loop: loop.trainer.discard_grads()),
}


@pytest.mark.filterwarnings("ignore:Accumulating with float16")  # what a plain trainer does with O2
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_found(case):
    found, kind = WRONG[case]().check(), case.partition(" ")[0]
    first = "failed" if kind == "cast_by_hand" else kind  # MXNet has no product in float16 on a CPU
    assert kind in found.kinds and found.kinds[0] == first, str(found)
    assert str(found).startswith(("error: ", "warning: "))
    if kind in ("no_backward", "never_called"):
        assert [each.kind for each in found if each.severity != "note"] == [kind]


def frozen(policy, part):
    loop = Loop(policy)
    return with_grad_req(loop, "null", getattr(loop.net[2], part))


@pytest.mark.parametrize("policy", [None, "O1"])
def test_a_trained_bias_beside_a_frozen_weight_is_found(policy):
    (found,) = [each for each in frozen(policy, "weight").check() if each.kind == "frozen_weight"]
    assert found.severity == "warning" and "the weight of 'net_dense1' is frozen while its bias is trained" in found.text


@pytest.mark.parametrize("grad_req, gradient", [("null", 777), ("write", 8)])
def test_mxnet_leaves_the_gradient_of_such_a_bias_unwritten(grad_req, gradient):
    """Should MXNet be mended, the finding goes."""
    layer = nn.Dense(3, in_units=5)
    layer.initialize()
    layer.weight.grad_req = grad_req
    layer.bias.grad()[:] = 777
    with autograd.record():
        loss = layer(mx.nd.ones((8, 5))).sum()
    loss.backward()
    assert (layer.bias.grad().asnumpy() == gradient).all()


def swallowed(net, F, x):
    return F.where(F.ones_like(net.first(x)), net.first(x), net.second(net.first(x)))


@pytest.mark.parametrize("loss_scale", [64.0, "dynamic"])
def test_steps_that_no_scale_can_mend_are_found(loss_scale):
    """The loss is finite, and so a lower scale may help; but not where weights are NaN that backward goes through."""
    net = Partly(swallowed, 8, prefix="swallowed_")
    net.second.weight.set_data(net.second.weight.data() * np.nan)
    found = Loop(net=mxmp.gluon.convert(net, "O1"), trainer=scale_of(loss_scale)).check()
    assert found.kinds == ("weights_not_finite", "steps_skipped")
    assert "They are 'swallowed_dense1_weight'." in str(found) and "all 2 steps were skipped" in str(found)


def of_another_trainer():
    loop, other = Loop(), make(prefix="other_")
    return check_loop([loop.net, other], [loop.trainer, ours(other)], loop, speed=False)


def of_another_net():
    loop = Loop()
    return check_loop(make(prefix="other_"), loop.trainer, loop, speed=False)


SAID = {  # a finding, its kinds, and what is in its text
    "weights that backward does not reach": (
        lambda: with_unused_layer().check(), ("no_gradient",), "'partly_dense1_bias', 'partly_dense1_weight'"
    ),
    "one of several nets that is not called": (of_another_trainer, ("never_called",), "did not call 'other'"),
    "the trainer of another net": (of_another_net, ("wrong_trainer",), "none of the parameters of 'other"),
    "a trainer without a loss scale": (
        lambda: Loop(trainer=lambda net: mxmp.gluon.Trainer(net.collect_params(), "sgd", loss_scale=None)).check(),
        ("no_loss_scale",),
        "loss_scale='dynamic'",
    ),
    "float16 on a CPU is slow": (lambda: Loop().check(speed=True), ("slow_policy",), "float16 is emulated"),
}  # fmt: skip


@pytest.mark.parametrize("find, kinds, text", SAID.values(), ids=SAID.keys())
def test_a_finding_names_what_it_is_about(find, kinds, text):
    found = find()
    assert found.kinds == kinds and text in str(found)


def test_an_error_that_a_warning_does_not_explain_is_a_finding_too():
    loop = Loop(loss=WRONG["loss_precision"]().parts["loss"])
    loop.parts["backward"] = lambda loop: (scaled(loop), mx.nd.dot(mx.nd.ones((2, 3)), DATA).wait_to_read())
    assert {"loss_precision", "failed"} <= set(loop.check().kinds)


def uneven(loop):
    return [(each.severity, each.text) for each in loop.check(speed=True) if each.kind == "uneven_sizes"]


def test_sizes_that_tensor_cores_do_not_like_are_noted():
    ((severity, text),) = uneven(Loop(net=mxmp.gluon.convert(made(dense(13, 16), dense(8, 13), prefix="uneven_"), "O1")))
    assert severity == "note" and "uneven_dense0_fwd (out 13)" in text and "uneven_dense1_fwd (in 13)" in text
    ((_, text),) = uneven(Loop(data=DATA[:7], label=LABELS[:7]))
    assert text.startswith("the batch of 7")


@pytest.mark.parametrize("rows, noted", [(8, False), (4, True)])
def test_of_a_sequence_that_comes_first_the_products_rows_count(rows, noted):
    net, words = made(lambda: nn.Embedding(16, 8), dense(8, 8, flatten=False)), mx.nd.zeros((7, rows))
    texts = [text for _, text in uneven(Loop(net=mxmp.gluon.convert(net, "O1"), data=words, label=words))]
    assert bool(texts) == noted and all("the batch of 28" in text for text in texts)


# ------------------------------------------------------------------ healthy loops


def halves(loop):
    """Run both halves of the batch backward, which adds their gradients up."""
    for rows in (slice(0, 4), slice(4, 8)):
        backward(loop.trainer, lambda rows=rows: SOFTMAX(loop.net(loop.data[rows]), loop.label[rows]))


def zero_grad(loop):
    loop.net.collect_params().zero_grad()


def clipped_by_hand(loop):
    loop.trainer.unscale()
    gluon.utils.clip_global_norm(loop.gradients(), 0.1)


def averaged(loop):
    with autograd.record():
        scaled_backward(loop, loop.loss().mean())


def by_parts(loop):
    return SOFTMAX(loop.net[2](loop.net[1](loop.net[0](loop.data))), loop.label)


def frozen_layer():
    loop = Loop()
    return with_grad_req(loop, "null", loop.net[0].weight, loop.net[0].bias)


NO_SCALE = {"policy": "O1,loss_scale=None", "trainer": scale_of(None)}
HEALTHY = {
    "O1": Loop,
    "O2": lambda: Loop("O2"),
    "O3": lambda: Loop("O3"),
    "hybridized": lambda: Loop(net=make("O2", hybridized=True)),
    "not converted": lambda: Loop(None),
    "plain float32": lambda: plain_under(None),
    "called by its parts": lambda: Loop(None, loss=by_parts),
    "accumulation": lambda: with_grad_req(Loop("O2", backward=halves, after=zero_grad), "add"),
    "clipped by the trainer": lambda: Loop("O2", clip=lambda loop: loop.trainer.clip_global_norm(0.1)),
    "clipped by value": lambda: Loop(clip=lambda loop: loop.trainer.clip_value(0.1)),
    "clipped by hand": lambda: Loop("O2", clip=clipped_by_hand),
    "frozen layers": frozen_layer,
    "frozen bias": lambda: frozen("O1", "bias"),
    "backward while recording": lambda: Loop(backward=averaged, step=lambda loop: loop.trainer.step(1)),
    "last batch": lambda: Loop(data=DATA[:3], label=LABELS[:3]),
    "dynamic scale": lambda: Loop(trainer=scale_of("dynamic")),
    "without a scale": lambda: Loop(**NO_SCALE),
    "clipped without a scale": lambda: Loop(**NO_SCALE, clip=lambda loop: gluon.utils.clip_global_norm(loop.gradients(), 0.1)),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_nothing_is_found_in_a_healthy_loop(case):
    found = HEALTHY[case]().check()
    assert not found and str(found) == "nothing found", str(found)


def test_nothing_is_found_in_a_gan_with_two_trainers():
    critic, ones = make("O1", prefix="critic_"), mx.nd.ones((8, 8))
    generator = mxmp.gluon.convert(made(dense(8, 16), dense(16, 8), prefix="gen_"), "O2")
    trainers, binary = (ours(generator), ours(critic)), gluon.loss.SigmoidBinaryCrossEntropyLoss()

    def loop():
        noise = mx.nd.random.normal(shape=(8, 16))
        step(trainers[1], lambda: binary(critic(DATA), ones) + binary(critic(generator(noise).detach()), ones * 0), 8)
        step(trainers[0], lambda: binary(critic(generator(noise)), ones), 8)

    assert str(check_loop([generator, critic], trainers, loop, speed=False)) == "nothing found"


def test_nothing_is_found_where_two_trainers_step_on_one_loss():
    first, second = make("O2"), make("O2", prefix="other_")
    trainers = ours(first, 64.0), ours(second, 128.0)

    def loop():
        with autograd.record():
            loss = SOFTMAX(first(DATA) + second(DATA), LABELS)
        with trainers[0].scale_loss(loss, trainers[1]) as scaled_loss:
            scaled_loss.backward()
        for trainer in trainers:
            trainer.clip_global_norm(1.0)
            trainer.step(8)

    assert str(check_loop([first, second], trainers, loop, speed=False)) == "nothing found"


def test_nothing_is_found_on_two_contexts():
    contexts, net = [mx.cpu(0), mx.cpu(1)], make("O2")
    net.collect_params().reset_ctx(contexts)
    trainer = ours(net)
    parts = list(zip(*(gluon.utils.split_and_load(each, contexts) for each in (DATA, LABELS))))

    def loop():
        step(trainer, lambda: [SOFTMAX(net(data), label) for data, label in parts], 8)

    assert str(check_loop(net, trainer, loop, speed=False)) == "nothing found"


def test_gradients_in_bfloat16_are_looked_at():
    """Without operators that a processor may lack."""
    net = mxmp.gluon.cast(made(dense(8, 16), init=mx.init.One()), "bfloat16")
    params = net.collect_params().values()
    loop = Loop(
        net=net,
        trainer=scale_of(8.0),
        loss=lambda loop: sum((param.data().astype("float32") ** 2).sum() for param in params),
        step=lambda loop: loop.trainer.step(1),
    )
    assert str(loop.check()) == "nothing found"
    assert with_grad_req(loop, "add").check().kinds == ("zero_grad_missing",)


# ------------------------------------------------------------------ all is put back


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("before", [0, 2], ids=["first step", "later"])
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_training_goes_on_to_the_last_bit_as_if_nothing_had_been(policy, before, optimizer):
    results = []

    def scheduled(net):
        options = {"learning_rate": 0.1, "lr_scheduler": mx.lr_scheduler.FactorScheduler(1, 0.9)}
        return trainer_of(net, DynamicLossScale(init_scale=64.0, growth_interval=2), optimizer, **options)

    for checked in (False, True):
        loop = Loop(net=make(policy, hybridized=True), trainer=scheduled)
        for number in range(before + 3):
            assert number != before or not checked or not loop.check()
            loop()
        trainer = loop.trainer
        results.append((loop.weights(), trainer.loss_scale, trainer.learning_rate, trainer.skipped_steps))
    assert all(map(np.array_equal, results[0][0], results[1][0])) and results[0][1:] == results[1][1:]


def test_it_is_put_back_after_an_error_of_the_user():
    loop = Loop("O2")
    loop()
    before, attributes = copy.deepcopy(loop.weights()), dict(vars(loop.trainer))
    loop.parts["after"] = lambda loop: 1 / 0
    with pytest.raises(ZeroDivisionError):
        loop.check()
    assert all(map(np.array_equal, before, loop.weights()))
    assert vars(loop.trainer) == attributes and not loop.net._forward_pre_hooks


def test_logs_ledgers_and_watches_do_not_see_the_steps_and_go_on(tmp_path):
    loop = Loop("O2")
    ledger = Ledger(every=1).attach(loop.trainer)
    log = CSVLogger(tmp_path, ledger=ledger).attach(loop.trainer)
    loop.parts["after"] = lambda loop: log.log(loss=1.5)
    loop()
    with Watch().attach(loop.trainer) as watch:
        assert not loop.check() and watch.end is None
        loop()
        assert watch.end.number == 2
    log.close()
    rows = [line.split(",") for line in (tmp_path / "steps.csv").read_text().splitlines()]
    assert [(row[0], row[6]) for row in rows] == [("step", "loss"), ("1", "1.5"), ("2", "1.5")]
    assert (ledger.steps, ledger.sampled) == (2, 2)


def test_a_block_around_iterations_finds_the_same():
    loop = Loop(backward=unscaled)
    with checking(loop.net, loop.trainer, speed=False) as found:
        loop(), loop()
    assert found.kinds == ("loss_not_scaled",) and "trainer.scale_loss(loss)" in str(found)
    loop.parts["backward"] = scaled
    with checking(loop.net, loop.trainer, speed=False) as found:
        loop()
    assert not found and len(found) == 0


def test_findings_are_values_errors_first(tmp_path):
    found = plain_under("O1").check(speed=True)
    assert [(each.severity, each.kind) for each in found] == [("error", "plain_trainer"), ("note", "slow_policy")]
    assert str(found).count("\n") == 1 and "not one of mxmp" in found._repr_html_()
    found.save(str(tmp_path / "loop.json"))
    assert LoopFindings.load(str(tmp_path / "loop.json")) == found
    healthy = Loop(None).check(speed=True)
    assert not healthy and "nothing found" in healthy._repr_html_()


def test_a_kvstore_that_updates_weights_is_refused_once_it_is_set_up():
    net, contexts = nn.Dense(8, in_units=16), [mx.cpu(0), mx.cpu(1)]
    net.initialize(ctx=contexts)
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore="device")

    def loop():
        with autograd.record():
            losses = [(net(DATA.as_in_context(ctx)) ** 2).sum() for ctx in contexts]
        autograd.backward(losses)
        trainer.step(16)

    weight = net.weight.data(contexts[0]).asnumpy()
    assert not check_loop(net, trainer, loop) and np.array_equal(net.weight.data(contexts[0]).asnumpy(), weight)
    loop()
    with pytest.raises(TrainerError, match="is set up and updates weights by itself"):
        check_loop(net, trainer, loop)
