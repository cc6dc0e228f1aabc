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

RNG = np.random.RandomState(0)
DATA, LABELS = mx.nd.array(RNG.randn(8, 16)), mx.nd.array(RNG.randint(0, 8, 8))
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def make(policy="O1", hybridized=False, extra=None, prefix="net_"):
    mx.random.seed(0)
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(8, in_units=16), nn.BatchNorm(in_channels=8), nn.Dense(8, in_units=8))
    if extra is not None:
        net.register_child(extra)
    net.initialize(mx.init.Xavier())
    if hybridized:
        net.hybridize()
    if policy:
        mxmp.gluon.convert(net, policy)
    return net


def ours(net, loss_scale=64.0, **options):
    given = {"learning_rate": 0.1, "momentum": 0.9, **options}
    return mxmp.gluon.Trainer(net.collect_params(), "sgd", given, loss_scale=loss_scale)


def plain(net, **options):
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, **options})


class Loop:
    """A step that is right; each part can be replaced by a wrong one."""

    def __init__(self, policy="O1", data=DATA, label=LABELS, net=None, trainer=None, **kwargs):
        self.net = make(policy, **kwargs) if net is None else net
        self.trainer = trainer or ours(self.net)
        self.data, self.label = data, label

    def loss(self):
        return LOSS(self.net(self.data), self.label)

    def backward(self):
        with autograd.record():
            loss = self.loss()
        with self.trainer.scale_loss(loss) as scaled:
            scaled.backward()

    def clip(self):
        pass

    def step(self):
        self.trainer.step(self.data.shape[0])

    def after(self):
        pass

    def __call__(self):
        self.backward()
        self.clip()
        self.step()
        self.after()

    def gradients(self):
        return [param.grad() for param in self.net.collect_params().values() if param.grad_req != "null"]

    def check(self, speed=False):
        return check_loop(self.net, self.trainer, self, speed)


def changed(loop, **methods):
    """Return a loop with other methods, functions of it."""
    for name, method in methods.items():
        setattr(loop, name, lambda method=method: method(loop))
    return loop


# ------------------------------------------------------------------ wrong loops


def unscaled(loop):
    with autograd.record():
        loss = loop.loss()
    loss.backward()


def unused(loop):
    with autograd.record():
        loss = loop.loss()
    with loop.trainer.scale_loss(loss):
        loss.backward()


def outside(loop):
    with loop.trainer.scale_loss(loop.loss()) as scaled:
        scaled.backward()


def outside_plain(loop):
    loop.loss()


def inferring(loop):
    with autograd.record(train_mode=False):
        loss = loop.loss()
    with loop.trainer.scale_loss(loss) as scaled:
        scaled.backward()


def low_loss(loop):
    with autograd.record():
        loss = LOSS(loop.net(loop.data).astype("float16"), loop.label)
    with loop.trainer.scale_loss(loss) as scaled:
        scaled.backward()


def whole_step_recorded(loop):
    with autograd.record():
        with loop.trainer.scale_loss(loop.loss()) as scaled:
            scaled.backward()
        loop.trainer.step(8)


def adding():
    loop = Loop()
    loop.net.collect_params().setattr("grad_req", "add")
    return loop


def with_unused_layer():
    return Loop(extra=None, net=_Partly(prefix="partly_"))


class _Partly(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.used, self.forgotten = nn.Dense(8, in_units=16), nn.Dense(8, in_units=16)
        self.initialize()

    def hybrid_forward(self, F, x):
        return self.used(x)


def low_norm():
    loop = Loop(policy=None)
    loop.net[1].gamma.cast("float16")
    return changed(loop, backward=lambda loop: None, step=lambda loop: None)


def cast_by_hand():
    net = make(None)
    net.cast("float16")
    loop = Loop(net=net, trainer=plain(net, multi_precision=True), data=DATA.astype("float16"))
    return changed(loop, backward=unscaled)


def plain_under(policy):
    net = make(policy)
    return changed(Loop(net=net, trainer=plain(net)), backward=unscaled)


def setting_rates():
    net = make()
    trainer = ours(net, mxmp.loss_scale.DynamicLossScale(init_scale=2.0**60, max_scale=2.0**60))
    return changed(Loop(net=net, trainer=trainer), after=lambda loop: loop.trainer.set_learning_rate(0.05))


def uneven():
    net = nn.HybridSequential(prefix="uneven_")
    with net.name_scope():
        net.add(nn.Dense(13, in_units=16), nn.Dense(8, in_units=13))
    net.initialize()
    return Loop(net=mxmp.gluon.convert(net, "O1"))


def no_backward(loop):
    with autograd.record():
        loop.loss()


def no_backward_of_scaled(loop):
    with autograd.record():
        loss = loop.loss()
    with loop.trainer.scale_loss(loss):
        pass


def plain_without(backward):
    net = make(None)
    return changed(Loop(net=net, trainer=plain(net)), backward=backward)


def on_another_net(loop):
    other = make(prefix="another_")
    with autograd.record():
        loss = LOSS(other(loop.data), loop.label)
    with loop.trainer.scale_loss(loss) as scaled:
        scaled.backward()


def of_nan(loss_scale=64.0, policy="O1", name="0"):
    net = make(policy)
    weight = net[int(name)].weight
    weight.set_data(weight.data() * np.nan)
    return Loop(net=net, trainer=ours(net, loss_scale))


def becoming_nan():
    return changed(plain_without(unscaled), after=lambda loop: loop.net[0].weight.data().__imul__(np.inf))


WRONG = {
    "no_backward": lambda: changed(Loop(), backward=no_backward),
    "no_backward of a scaled loss": lambda: changed(Loop(), backward=no_backward_of_scaled),
    "no_backward without a scale": lambda: changed(
        Loop(net=(net := make()), trainer=ours(net, None)), backward=no_backward
    ),
    "no_backward of a plain trainer": lambda: plain_without(no_backward),
    "never_called": lambda: changed(Loop(), backward=on_another_net),
    "never_called at all": lambda: plain_without(lambda loop: None),
    "weights_not_finite": of_nan,
    "weights_not_finite in float16": lambda: of_nan(policy="O2"),
    "weights_not_finite without a scale": lambda: of_nan(None, name="2"),
    "weights_not_finite after steps": becoming_nan,
    "plain_trainer": lambda: plain_under("O1"),
    "plain_trainer of O2": lambda: plain_under("O2"),
    "loss_not_scaled": lambda: changed(Loop(), backward=unscaled),
    "loss_not_scaled unused": lambda: changed(Loop(), backward=unused),
    "zero_grad_missing": adding,
    "no_gradient": with_unused_layer,
    "not_recorded": lambda: changed(Loop(policy=None, trainer=None), backward=outside),
    "not_training": lambda: changed(Loop(), backward=inferring),
    "loss_precision": lambda: changed(Loop(), backward=low_loss),
    "step_recorded": lambda: changed(Loop(), __call__=None, backward=whole_step_recorded, step=lambda loop: None),
    "schedule_on_skip": setting_rates,
    "norm_precision": low_norm,
    "cast_by_hand": cast_by_hand,
    "float64_data": lambda: Loop(data=DATA.astype("float64")),
    "loss_not_finite": lambda: Loop(data=DATA * np.nan),
    "steps_skipped": lambda: Loop(net=(net := make()), trainer=ours(net, 2.0**100)),
    "no_step": lambda: changed(Loop(), step=lambda loop: loop.trainer.discard_grads()),
}


@pytest.mark.filterwarnings("ignore:Accumulating with float16")  # what a plain trainer does with O2
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_found(case):
    loop = WRONG[case]()
    found = loop.check()
    kind = case.partition(" ")[0]
    first = "failed" if kind == "cast_by_hand" else kind  # MXNet has no product in float16 on a CPU
    assert kind in found.kinds and found.kinds[0] == first, str(found)
    assert str(found).startswith(("error: ", "warning: "))


def test_weights_that_backward_does_not_reach_are_named():
    assert "'partly_dense1_bias', 'partly_dense1_weight'" in str(with_unused_layer().check())


class _Swallowed(gluon.HybridBlock):
    """A layer whose outputs are not used, but which backward goes through."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first, self.unused = nn.Dense(8, in_units=16), nn.Dense(8, in_units=8)
        self.initialize()

    def hybrid_forward(self, F, x):
        x = self.first(x)
        return F.where(F.ones_like(x), x, self.unused(x))


@pytest.mark.parametrize("policy", [None, "O1"])
def test_a_trained_bias_beside_a_frozen_weight_is_found(policy):
    (found,) = [each for each in with_frozen_weight(policy).check() if each.kind == "frozen_weight"]
    assert (
        found.severity == "warning" and "the weight of 'net_dense1' is frozen while its bias is trained" in found.text
    )


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


@pytest.mark.parametrize("loss_scale", [64.0, "dynamic"])
def test_steps_that_no_scale_can_mend_are_found(loss_scale):
    """The loss is finite, and so a lower scale may help; but not where weights are NaN."""
    net = mxmp.gluon.convert(_Swallowed(prefix="swallowed_"), "O1")
    net.unused.weight.set_data(net.unused.weight.data() * np.nan)
    found = Loop(net=net, trainer=ours(net, loss_scale)).check()
    assert found.kinds == ("weights_not_finite", "steps_skipped")
    assert "They are 'swallowed_dense1_weight'." in str(found) and "all 2 steps were skipped" in str(found)


def test_one_finding_says_that_backward_is_missing():
    for loop in (
        changed(Loop(), backward=no_backward),
        plain_without(no_backward),
        changed(Loop(), backward=on_another_net),
    ):
        assert len(loop.check()) == 1


def test_a_net_whose_parts_are_called_is_not_said_to_be_left_out():
    loop = Loop(policy=None)

    def backward(loop):
        with autograd.record():
            loss = LOSS(loop.net[2](loop.net[1](loop.net[0](loop.data))), loop.label)
        with loop.trainer.scale_loss(loss) as scaled:
            scaled.backward()

    assert str(changed(loop, backward=backward).check()) == "nothing found"


def test_one_of_several_nets_that_is_not_called_is_named():
    loop, other = Loop(), make(prefix="other_")
    found = check_loop([loop.net, other], [loop.trainer, ours(other)], loop, speed=False)
    assert found.kinds == ("never_called",) and "did not call 'other'" in str(found)


def test_sizes_that_tensor_cores_do_not_like_are_noted():
    found = uneven().check(speed=True)
    texts = [each.text for each in found if each.kind == "uneven_sizes"]
    assert len(texts) == 1 and "uneven_dense0_fwd (out 13)" in texts[0] and "uneven_dense1_fwd (in 13)" in texts[0]
    assert {each.severity for each in found} == {"note"}
    batch = Loop(data=DATA[:7], label=LABELS[:7]).check(speed=True)
    assert [each.text for each in batch if each.kind == "uneven_sizes"][0].startswith("the batch of 7")


@pytest.mark.parametrize("rows, noted", [(8, False), (4, True)])
def test_of_a_sequence_that_comes_first_the_products_rows_count(rows, noted):
    net = nn.HybridSequential(prefix="words_")
    with net.name_scope():
        net.add(nn.Embedding(16, 8), nn.Dense(8, flatten=False, in_units=8))
    net.initialize()
    words = mx.nd.zeros((7, rows))
    loop = Loop(net=mxmp.gluon.convert(net, "O1"), data=words, label=words)
    texts = [each.text for each in loop.check(speed=True) if each.kind == "uneven_sizes"]
    assert bool(texts) == noted and all("the batch of 28" in text for text in texts)


def test_a_trainer_without_a_loss_scale_is_noted():
    loop = Loop()
    loop.trainer = mxmp.gluon.Trainer(loop.net.collect_params(), "sgd", loss_scale=None)
    found = loop.check()
    assert "no_loss_scale" in found.kinds and "loss_scale='dynamic'" in str(found)


def test_float16_on_a_cpu_is_noted_as_slow():
    found = Loop().check(speed=True)
    assert found.kinds == ("slow_policy",) and "float16 is emulated" in str(found)
    assert not Loop(policy=None).check(speed=True)


# ------------------------------------------------------------------ healthy loops


def accumulated():
    loop = Loop("O2")
    loop.net.collect_params().setattr("grad_req", "add")

    def backward(loop):
        for rows in (slice(0, 4), slice(4, 8)):
            with autograd.record():
                loss = LOSS(loop.net(loop.data[rows]), loop.label[rows])
            with loop.trainer.scale_loss(loss) as scaled:
                scaled.backward()

    return changed(loop, backward=backward, after=lambda loop: loop.net.collect_params().zero_grad())


def clipped_by_hand(loop):
    loop.trainer.unscale()
    gluon.utils.clip_global_norm(loop.gradients(), 0.1)


def frozen():
    loop = Loop()
    loop.net[0].collect_params().setattr("grad_req", "null")
    return loop


def with_frozen_weight(policy="O1", part="weight"):
    loop = Loop(policy)
    getattr(loop.net[2], part).grad_req = "null"
    return loop


def in_float32():
    net = make(None)
    return changed(Loop(net=net, trainer=plain(net)), backward=unscaled)


def averaged(loop):
    with autograd.record(), loop.trainer.scale_loss(loop.loss().mean()) as scaled:
        scaled.backward()


HEALTHY = {
    "O1": Loop,
    "O2": lambda: Loop("O2"),
    "O3": lambda: Loop("O3"),
    "hybridized": lambda: Loop("O2", hybridized=True),
    "not converted": lambda: Loop(None),
    "plain float32": in_float32,
    "accumulation": accumulated,
    "clipped by the trainer": lambda: changed(Loop("O2"), clip=lambda loop: loop.trainer.clip_global_norm(0.1)),
    "clipped by value": lambda: changed(Loop(), clip=lambda loop: loop.trainer.clip_value(0.1)),
    "clipped by hand": lambda: changed(Loop("O2"), clip=clipped_by_hand),
    "frozen layers": frozen,
    "frozen bias": lambda: with_frozen_weight(part="bias"),
    "backward while recording": lambda: changed(Loop(), backward=averaged, step=lambda loop: loop.trainer.step(1)),
    "last batch": lambda: Loop(data=DATA[:3], label=LABELS[:3]),
    "dynamic scale": lambda: Loop(net=(net := make()), trainer=ours(net, "dynamic")),
    "without a scale": lambda: Loop(net=(net := make("O1,loss_scale=None")), trainer=ours(net, None)),
    "clipped without a scale": lambda: changed(
        Loop(net=(net := make("O1,loss_scale=None")), trainer=ours(net, None)),
        clip=lambda loop: gluon.utils.clip_global_norm(loop.gradients(), 0.1),
    ),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_nothing_is_found_in_a_healthy_loop(case):
    found = HEALTHY[case]().check()
    assert not found and str(found) == "nothing found", str(found)


def test_nothing_is_found_in_a_gan_with_two_trainers():
    generator, critic = make("O2", prefix="gen_"), make("O1", prefix="critic_")
    project = nn.Dense(16, in_units=8, prefix="project_")
    project.initialize()
    generator.add(project)
    trainers = ours(generator), ours(critic)
    binary = gluon.loss.SigmoidBinaryCrossEntropyLoss()

    def loop():
        noise = mx.nd.random.normal(shape=(8, 16))
        with autograd.record():
            fake = generator(noise)
            real_loss = binary(critic(DATA), mx.nd.ones((8, 8)))
            loss = real_loss + binary(critic(fake.detach()), mx.nd.zeros((8, 8)))
        with trainers[1].scale_loss(loss) as scaled:
            scaled.backward()
        trainers[1].step(8)
        with autograd.record():
            loss = binary(critic(generator(noise)), mx.nd.ones((8, 8)))
        with trainers[0].scale_loss(loss) as scaled:
            scaled.backward()
        trainers[0].step(8)

    assert str(check_loop([generator, critic], trainers, loop, speed=False)) == "nothing found"


def test_nothing_is_found_where_two_trainers_step_on_one_loss():
    first, second = make("O2"), make("O2", prefix="other_")
    trainers = ours(first, 64.0), ours(second, 128.0)

    def loop():
        with autograd.record():
            loss = LOSS(first(DATA) + second(DATA), LABELS)
        with trainers[0].scale_loss(loss, trainers[1]) as scaled:
            scaled.backward()
        for trainer in trainers:
            trainer.clip_global_norm(1.0)
            trainer.step(8)

    assert str(check_loop([first, second], trainers, loop, speed=False)) == "nothing found"


def test_nothing_is_found_on_two_contexts():
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = make("O2")
    net.collect_params().reset_ctx(contexts)
    trainer = ours(net)

    def loop():
        parts = zip(*(gluon.utils.split_and_load(each, contexts) for each in (DATA, LABELS)))
        with autograd.record():
            losses = [LOSS(net(data), label) for data, label in parts]
        with trainer.scale_loss(losses) as scaled:
            autograd.backward(scaled)
        trainer.step(8)

    assert str(check_loop(net, trainer, loop, speed=False)) == "nothing found"


def of_bfloat16(loss_scale=8.0):
    """A loop over weights and gradients in bfloat16, without operators that a processor may lack."""
    net = nn.HybridSequential(prefix="low_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=16))
    net.initialize(mx.init.One())
    mxmp.gluon.cast(net, "bfloat16")
    params = net.collect_params().values()
    loop = Loop(net=net, trainer=ours(net, loss_scale))
    return changed(
        loop,
        loss=lambda loop: sum((param.data().astype("float32") ** 2).sum() for param in params),
        step=lambda loop: loop.trainer.step(1),
    )


def test_gradients_in_bfloat16_are_looked_at():
    assert str(of_bfloat16().check()) == "nothing found"
    loop = of_bfloat16()
    loop.net.collect_params().setattr("grad_req", "add")
    assert loop.check().kinds == ("zero_grad_missing",)


# ------------------------------------------------------------------ all is put back


def run(loop, steps=3):
    return [loop() for _ in range(steps)] and [p.data().asnumpy() for p in loop.net.collect_params().values()]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_training_goes_on_as_if_nothing_had_been(policy, before, optimizer):
    """With float16 weights and masters, from the first step and later, to the last bit."""
    results = []
    for checked in (False, True):
        net = make(policy, hybridized=True)
        options = {"learning_rate": 0.1, "lr_scheduler": mx.lr_scheduler.FactorScheduler(1, 0.9)}
        scale = mxmp.loss_scale.DynamicLossScale(init_scale=64.0, growth_interval=2)
        loop = Loop(net=net, trainer=mxmp.gluon.Trainer(net.collect_params(), optimizer, options, loss_scale=scale))
        run(loop, before)
        if checked:
            assert not loop.check()
        values = run(loop)
        results.append((values, loop.trainer.loss_scale, loop.trainer.learning_rate, loop.trainer.skipped_steps))
    for left, right in zip(results[0][0], results[1][0]):
        assert np.array_equal(left, right)
    assert results[0][1:] == results[1][1:]


def test_it_is_put_back_after_an_error_of_the_user():
    loop = Loop("O2")
    run(loop, 1)
    before = copy.deepcopy([p.data().asnumpy() for p in loop.net.collect_params().values()])
    attributes = dict(vars(loop.trainer))

    def step(loop):
        loop.trainer.step(8)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        changed(loop, step=step).check()
    after = [p.data().asnumpy() for p in loop.net.collect_params().values()]
    assert all(map(np.array_equal, before, after))
    assert vars(loop.trainer) == attributes and not loop.net._forward_pre_hooks


def test_logs_ledgers_and_watches_do_not_see_the_steps_and_go_on(tmp_path):
    loop = Loop("O2")
    ledger = Ledger(every=1).attach(loop.trainer)
    log = CSVLogger(tmp_path, ledger=ledger).attach(loop.trainer)
    changed(loop, after=lambda loop: log.log(loss=1.5))
    loop()
    with Watch().attach(loop.trainer) as watch:
        assert not loop.check() and watch.end is None
        loop()
        assert watch.end.number == 2
    log.close()
    rows = [line.split(",") for line in (tmp_path / "steps.csv").read_text().splitlines()]
    assert [row[0] for row in rows] == ["step", "1", "2"] and [row[6] for row in rows[1:]] == ["1.5", "1.5"]
    assert (ledger.steps, ledger.sampled) == (2, 2)


def test_a_block_around_iterations_finds_the_same():
    loop = changed(Loop(), backward=unscaled)
    with checking(loop.net, loop.trainer, speed=False) as found:
        for _ in range(2):
            loop()
    assert found.kinds == ("loss_not_scaled",) and "trainer.scale_loss(loss)" in str(found)
    with checking(loop.net, loop.trainer, speed=False) as found:
        Loop.backward(loop)
        loop.step()
    assert not found and len(found) == 0


def test_the_trainer_of_another_net_is_found():
    loop = Loop()
    found = check_loop(make(prefix="other_"), loop.trainer, loop, speed=False)
    assert found.kinds == ("wrong_trainer",) and "none of the parameters of 'other" in str(found)


def test_findings_are_values_errors_first(tmp_path):
    found = plain_under("O1").check(speed=True)
    assert [(each.severity, each.kind) for each in found] == [("error", "plain_trainer"), ("note", "slow_policy")]
    assert str(found).count("\n") == 1 and "not one of mxmp" in found._repr_html_()
    found.save(str(tmp_path / "loop.json"))
    assert LoopFindings.load(str(tmp_path / "loop.json")) == found
    assert "nothing found" in Loop(policy=None).check()._repr_html_()


def test_bad_arguments_are_refused():
    loop = Loop()
    with pytest.raises(TrainerError, match="loop is a NoneType; give a function"):
        check_loop(loop.net, loop.trainer, None)
    with pytest.raises(TrainerError, match="net is a Trainer; expected a gluon.Block"):
        check_loop(loop.trainer, loop.net, loop)
    with pytest.raises(TrainerError, match="trainer is a NoneType; expected a gluon.Trainer"):
        check_loop(loop.net, None, loop)
    with pytest.raises(TrainerError, match="net is empty"):
        check_loop([], loop.trainer, loop)


def test_a_kvstore_that_has_updated_weights_is_refused():
    net = nn.Dense(8, in_units=16)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore="device")

    def loop():
        with autograd.record():
            losses = [(net(DATA.as_in_context(ctx)) ** 2).sum() for ctx in (mx.cpu(0), mx.cpu(1))]
        autograd.backward(losses)
        trainer.step(16)

    weight = net.weight.data(mx.cpu(0)).asnumpy()
    assert not check_loop(net, trainer, loop)
    assert np.array_equal(net.weight.data(mx.cpu(0)).asnumpy(), weight)
    loop()
    with pytest.raises(TrainerError, match="is set up and updates weights by itself"):
        check_loop(net, trainer, loop)


def test_an_error_that_a_warning_does_not_explain_is_a_finding_too():
    def failing(loop):
        low_loss(loop)
        mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((2, 3))).wait_to_read()

    assert {"loss_precision", "failed"} <= set(changed(Loop(), backward=failing).check().kinds)
