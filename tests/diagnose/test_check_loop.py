"""What is wrong with a loop is found, in healthy loops nothing, and all is as before."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose import CSVLogger, LoopFindings, Watch, check_loop, checking
from mxmp.errors import TrainerError
from mxmp.loss_scale import DynamicLossScale
from tests.diagnose.nets import SOFTMAX, Applied, backward, step, trainer_of

RNG = np.random.RandomState(0)
DATA, LABELS = mx.nd.array(RNG.randn(8, 16)), mx.nd.array(RNG.randint(0, 8, 8))
CONTEXTS = [mx.cpu(0), mx.cpu(1)]


def made(*layers, prefix="net_", init=None):
    mx.random.seed(0)
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(*(each() for each in layers))
    net.initialize(mx.init.Xavier() if init is None else init)
    return net


def dense(units, inputs, **options):
    return lambda: nn.Dense(units, in_units=inputs, **options)


def make(policy="O1", prefix="net_", hybridized=False):
    net = made(dense(8, 16), lambda: nn.BatchNorm(in_channels=8), dense(8, 8), prefix=prefix)
    net.hybridize(hybridized)
    return mxmp.gluon.convert(net, policy) if policy else net


def ours(net, loss_scale=64.0):
    return trainer_of(net, loss_scale, learning_rate=0.1, momentum=0.9)


def scale_of(value):
    return lambda net: ours(net, value)


def plain(net, **options):
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, **options})


def scaled(loop):
    backward(loop.trainer, lambda: loop.parts["loss"](loop))


class Loop:
    """A step that is right; each part can be replaced by a function of the loop, and the trainer be made otherwise."""

    def __init__(self, policy="O1", data=DATA, label=LABELS, net=None, trainer=ours, nets=None, **parts):
        self.net = make(policy) if net is None else net
        self.nets = self.net if nets is None else nets(self.net)
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

    def check(self, speed=False):
        return check_loop(self.nets, self.trainer, self, speed)


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


def changed(loop, change):
    change(loop.net)
    return loop


def with_grad_req(grad_req, *parts, **options):
    """Return a loop of which the parameters, or those of a layer that begin with its parts, have another grad_req."""
    loop = Loop(**options)
    for name, param in loop.net.collect_params().items():
        param.grad_req = grad_req if not parts or name.endswith(parts) else param.grad_req
    return loop


def with_second(function):
    """Return a net of two layers: a function of the first one's output, and of the second layer."""
    net = Applied(lambda F, x: function(F, x, net.second), 8, 16)
    net.second = nn.Dense(8, in_units=8, prefix="second_")
    net.initialize()
    return net


def swallowing(loss_scale):
    """Return a loop in which the loss is finite, and so a lower scale may help; but backward goes through NaN."""
    net = with_second(lambda F, x, second: F.where(F.ones_like(x), x, second(x)))
    net.second.weight.set_data(net.second.weight.data() * np.nan)
    return Loop(net=mxmp.gluon.convert(net, "O1"), trainer=scale_of(loss_scale))


def cast_by_hand():
    net = make(None)
    net.cast("float16")
    return Loop(net=net, trainer=lambda net: plain(net, multi_precision=True), data=DATA.astype("float16"), backward=unscaled)


def plain_under(policy, backward=unscaled, **parts):
    return Loop(policy, trainer=plain, backward=backward, **parts)


def multiplied(loop, number, factor):
    return changed(loop, lambda net: net[number].weight.set_data(net[number].weight.data() * factor))


def sequences(rows):
    net, words = made(lambda: nn.Embedding(16, 8), dense(8, 8, flatten=False)), mx.nd.zeros((7, rows))
    return Loop(net=mxmp.gluon.convert(net, "O1"), data=words, label=words)


def failing(loop):
    scaled(loop)
    mx.nd.dot(mx.nd.ones((2, 3)), DATA).wait_to_read()


def in_float16(loop):
    return SOFTMAX(loop.net(loop.data).astype("float16"), loop.label)


HIGHEST = DynamicLossScale(init_scale=2.0**60, max_scale=2.0**60)
NO_SCALE = {"policy": "O1,loss_scale=None", "trainer": scale_of(None)}
ANOTHER = make(prefix="another_")
WRONG = {  # a loop, the kinds of its findings, and what is in their text
    "no backward": (lambda: Loop(backward=recorded), "no_backward", ""),
    "no backward of a scaled loss": (lambda: Loop(backward=of(scaling(lambda *losses: None))), "no_backward", ""),
    "no backward of a plain trainer": (lambda: plain_under(None, recorded), "no_backward", ""),
    "another net is called": (
        lambda: Loop(backward=lambda loop: backward(loop.trainer, lambda: SOFTMAX(ANOTHER(loop.data), loop.label))),
        "never_called", "did not call 'net'",
    ),
    "no net is called": (lambda: plain_under(None, nothing), "never_called", ""),
    "one of several nets is not called": (lambda: Loop(nets=lambda net: [net, make(prefix="other_")]), "never_called", "did not call 'other'"),
    "the trainer of another net": (lambda: Loop(nets=lambda net: ANOTHER), "wrong_trainer", "none of the parameters of 'another"),
    "a weight is NaN": (lambda: multiplied(Loop(), 0, np.nan), "weights_not_finite loss_not_finite", "They are 'net_dense0_weight'"),
    "a float16 weight is NaN": (lambda: multiplied(Loop("O2"), 0, np.nan), "weights_not_finite loss_not_finite", ""),
    "a weight becomes inf": (lambda: plain_under(None, after=lambda loop: multiplied(loop, 0, np.inf)), "weights_not_finite", ""),
    "NaN that the loss does not show": (lambda: swallowing(64.0), "weights_not_finite steps_skipped", "all 2 steps were skipped"),
    "that no dynamic scale mends": (lambda: swallowing("dynamic"), "weights_not_finite steps_skipped", "'second_weight'."),
    "plain trainer": (lambda: plain_under("O1"), "plain_trainer", ""),
    "plain trainer of O2": (lambda: plain_under("O2"), "plain_trainer", "have no float32 masters"),
    "no loss scale": (lambda: Loop(trainer=scale_of(None)), "no_loss_scale", "loss_scale='dynamic'"),
    "the loss is not scaled": (lambda: Loop(backward=unscaled), "loss_not_scaled", ""),
    "the scaled loss is not used": (
        lambda: Loop(backward=of(scaling(lambda loss, scaled_loss: loss.backward()))), "loss_not_scaled", ""
    ),
    "gradients add up": (lambda: with_grad_req("add"), "zero_grad_missing", ""),
    "a layer is not used": (
        lambda: Loop(net=with_second(lambda F, x, second: x)), "no_gradient", "'second_bias', 'second_weight'"
    ),
    "not recorded": (lambda: Loop(None, backward=lambda loop: scaled_backward(loop, loop.loss())), "not_recorded failed", ""),
    "not training": (lambda: Loop(backward=of(scaled_backward, train_mode=False)), "not_training", ""),
    "a loss in float16": (lambda: Loop(loss=in_float16), "loss_precision", ""),
    "an error that the warning does not explain": (lambda: Loop(loss=in_float16, backward=failing), "failed loss_precision", ""),
    "the step is recorded": (lambda: Loop(backward=whole_step_recorded, step=nothing), "step_recorded failed", ""),
    "a schedule goes on": (
        lambda: Loop(trainer=scale_of(HIGHEST), after=lambda loop: loop.trainer.set_learning_rate(0.05)), "schedule_on_skip", ""
    ),
    "a norm in float16": (
        lambda: changed(Loop(None, backward=nothing, step=nothing), lambda net: net[1].gamma.cast("float16")),
        "norm_precision never_called no_step", "",
    ),
    "cast by hand": (cast_by_hand, "failed cast_by_hand", ""),  # MXNet has no product in float16 on a CPU
    "float64": (lambda: Loop(data=DATA.astype("float64")), "float64_data failed", ""),
    "a loss of NaN": (lambda: Loop(data=DATA * np.nan), "loss_not_finite", ""),
    "a scale that is too high": (lambda: Loop(trainer=scale_of(2.0**100)), "steps_skipped", ""),
    "no step": (lambda: Loop(step=lambda loop: loop.trainer.discard_grads()), "no_step", ""),
    "a trained bias beside a frozen weight": (
        lambda: with_grad_req("null", "dense1_weight", step=lambda loop: loop.trainer.discard_grads()),  # unwritten ones
        "no_step frozen_weight", "the weight of 'net_dense1' is frozen while its bias is trained",
    ),
    "float16 on a CPU": (Loop, "slow_policy", "float16 is emulated"),
    "sizes for tensor cores": (
        lambda: Loop(net=mxmp.gluon.convert(made(dense(13, 16), dense(8, 13)), "O1")), "slow_policy uneven_sizes",
        "'net_dense0_fwd (out 13)', 'net_dense1_fwd (in 13)'",
    ),
    "a batch for tensor cores": (lambda: Loop(data=DATA[:7], label=LABELS[:7]), "slow_policy uneven_sizes", "note: the batch of 7"),
    "a sequence that comes first, of which the products' rows count": (lambda: sequences(8), "slow_policy", ""),
    "a sequence whose rows are no multiple of 8": (lambda: sequences(4), "slow_policy uneven_sizes", "note: the batch of 28"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Accumulating with float16")  # what a plain trainer does with O2
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_found(case):
    make, kinds, text = WRONG[case]
    found = make().check(speed="slow_policy" in kinds)
    assert found.kinds == tuple(kinds.split()) and text in str(found), str(found)
    assert str(found).startswith(("error: ", "warning: ", "note: "))


# ------------------------------------------------------------------ healthy loops


def halves(loop):
    """Run both halves of the batch backward, which adds their gradients up."""
    for rows in (slice(0, 4), slice(4, 8)):
        backward(loop.trainer, lambda rows=rows: SOFTMAX(loop.net(loop.data[rows]), loop.label[rows]))


def clipped_by_hand(loop):
    loop.trainer.unscale()
    gradients = [param.grad() for param in loop.net.collect_params().values() if param.grad_req != "null"]
    gluon.utils.clip_global_norm(gradients, 0.1)


def averaged(loop):
    with autograd.record():
        scaled_backward(loop, loop.loss().mean())


def by_parts(loop):
    return SOFTMAX(loop.net[2](loop.net[1](loop.net[0](loop.data))), loop.label)


def on_two_contexts():
    net, parts = make("O2"), list(zip(*(gluon.utils.split_and_load(each, CONTEXTS) for each in (DATA, LABELS))))
    net.collect_params().reset_ctx(CONTEXTS)
    return Loop(net=net, loss=lambda loop: [SOFTMAX(net(data), label) for data, label in parts])


HEALTHY = {
    "O1": Loop,
    "O3": lambda: Loop("O3"),
    "hybridized": lambda: Loop(net=make("O2", hybridized=True)),
    "not converted, called by its parts": lambda: Loop(None, loss=by_parts),
    "plain float32": lambda: plain_under(None),
    "accumulation": lambda: with_grad_req(
        "add", policy="O2", backward=halves, after=lambda loop: loop.net.collect_params().zero_grad()
    ),
    "clipped by the trainer": lambda: Loop("O2", clip=lambda loop: loop.trainer.clip_global_norm(0.1)),
    "clipped by value": lambda: Loop(clip=lambda loop: loop.trainer.clip_value(0.1)),
    "clipped by hand": lambda: Loop("O2", clip=clipped_by_hand),
    "frozen layers": lambda: with_grad_req("null", "dense0_weight", "dense0_bias", "dense1_bias"),
    "backward while recording": lambda: Loop(backward=averaged, step=lambda loop: loop.trainer.step(1)),
    "last batch": lambda: Loop(data=DATA[:3], label=LABELS[:3]),
    "dynamic scale": lambda: Loop(trainer=scale_of("dynamic")),
    "without a scale": lambda: Loop(**NO_SCALE, clip=clipped_by_hand),
    "two contexts": on_two_contexts,
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


@pytest.mark.parametrize("grad_req, kinds", [("write", ()), ("add", ("zero_grad_missing",))])
def test_gradients_in_bfloat16_are_looked_at(grad_req, kinds):
    """Without operators that a processor may lack."""
    net = mxmp.gluon.cast(made(dense(8, 16), init=mx.init.One()), "bfloat16")
    loop = with_grad_req(grad_req, net=net, trainer=scale_of(8.0), data=DATA[:1])
    loop.parts["loss"] = lambda loop: sum((p.data().astype("float32") ** 2).sum() for p in net.collect_params().values())
    assert loop.check().kinds == kinds


# ------------------------------------------------------------------ all is put back


@pytest.mark.parametrize("policy, before, optimizer", [("O1", 0, "sgd"), ("O2", 0, "adam"), ("O1", 2, "adam"), ("O2", 2, "sgd")])
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
    before, attributes = loop.weights(), dict(vars(loop.trainer))
    loop.parts["after"] = lambda loop: 1 / 0
    with pytest.raises(ZeroDivisionError):
        loop.check()
    assert all(map(np.array_equal, before, loop.weights()))
    assert vars(loop.trainer) == attributes and not loop.net._forward_pre_hooks


def test_logs_and_watches_do_not_see_the_steps_and_go_on(tmp_path):
    loop = Loop("O2")
    log = CSVLogger(tmp_path).attach(loop.trainer)
    loop.parts["after"] = lambda loop: log.log(loss=1.5)
    loop()
    with Watch().attach(loop.trainer) as watch:
        assert not loop.check() and watch.end is None
        loop()
        assert watch.end.number == 2
    log.close()
    rows = [line.split(",") for line in (tmp_path / "steps.csv").read_text().splitlines()]
    assert [(row[0], row[6]) for row in rows] == [("step", "loss"), ("1", "1.5"), ("2", "1.5")]


@pytest.mark.parametrize("part, kinds", [(unscaled, ("loss_not_scaled",)), (scaled, ())], ids=["wrong", "right"])
def test_a_block_around_iterations_finds_the_same(part, kinds):
    loop = Loop(backward=part)
    with checking(loop.net, loop.trainer, speed=False) as found:
        loop(), loop()
    assert found.kinds == kinds and ("trainer.scale_loss(loss)" in str(found)) == bool(kinds)


def test_findings_are_values_errors_first():
    found = plain_under("O1").check(speed=True)
    assert [(each.severity, each.kind) for each in found] == [("error", "plain_trainer"), ("note", "slow_policy")]
    assert str(found).count("\n") == 1 and "not one of mxmp" in found._repr_html_()
    assert LoopFindings.from_json(found.to_json()) == found and "nothing found" in Loop(None).check(speed=True)._repr_html_()


def test_a_kvstore_that_updates_weights_is_refused_once_it_is_set_up():
    net = nn.Dense(8, in_units=16)
    net.initialize(ctx=CONTEXTS)

    def backward(loop):
        with autograd.record():
            losses = [(net(DATA.as_in_context(ctx)) ** 2).sum() for ctx in CONTEXTS]
        autograd.backward(losses)

    loop, weight = Loop(net=net, trainer=plain, backward=backward), net.weight.data(CONTEXTS[0]).asnumpy()
    assert not loop.check() and np.array_equal(net.weight.data(CONTEXTS[0]).asnumpy(), weight)
    loop()
    with pytest.raises(TrainerError, match="is set up and updates weights by itself"):
        loop.check()
