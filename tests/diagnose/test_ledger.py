"""What a ledger counts in a run, against numpy; that the run is not changed; three rules; a file that goes on."""

import contextlib
import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import mxmp
from mxmp.diagnose import CSVLogger, Ledger, exponents
from mxmp.diagnose import ledger as ledgers
from mxmp.errors import LossScaleError, NonFiniteLossError
from mxmp.loss_scale import DynamicLossScale
from tests.diagnose.nets import dense, step, trainer_of

GRADS = {
    "conv_weight": np.float16([[0, 0, 2.0**-24, -(2.0**-15)], [1, -2, 3, -40000]]),
    "fc_bias": np.float16([0, 0, 0, 2.0**-14, 6e-5]),
}
SHAPES = {name: values.shape for name, values in GRADS.items()}


class Run:
    """Parameters by name with a trainer and a ledger; `step` takes their scaled gradients, as backward leaves them."""

    def __init__(self, shapes, dtypes=None, contexts=1, loss_scale=1024.0, every=1, **options):
        self.contexts, self.params = [mx.cpu(number) for number in range(contexts)], []
        for name, shape in shapes.items():
            param = mx.gluon.Parameter(name, shape=shape, dtype=(dtypes or {}).get(name, "float16"))
            param.initialize(mx.init.One(), ctx=self.contexts)
            self.params.append(param)
        options = {"learning_rate": 0.0, **options}
        self.trainer = mxmp.gluon.Trainer(self.params, "sgd", options, loss_scale=loss_scale)
        self.ledger = Ledger(every).attach(self.trainer)

    def step(self, grads, count=1):
        """Take steps with gradients by name: an array for all contexts, or a list of one each."""
        for _ in range(count):
            with mx.autograd.record():
                losses = [mx.nd.Cast(w, dtype="float32").sum() for param in self.params for w in param.list_data()]
            with self.trainer.scale_loss(losses) as scaled:
                mx.autograd.backward(scaled)
                for param in self.params:
                    given = grads[param.name]
                    for data, values in zip(param.list_data(), given if isinstance(given, list) else [given] * 9):
                        data.grad[:] = mx.nd.array(np.broadcast_to(values, param.shape), dtype=param.dtype)
            self.trainer.step(1)
        return self.ledger

    @property
    def layers(self):
        return {layer.name: layer for layer in self.ledger.layers}


def is_as(ledger, name, values):
    """Return whether a ledger has counted these values of a parameter."""
    (layer,) = (each for each in ledger.layers if each.name == name)
    values = np.abs(values.astype(np.float64)).ravel()
    exponents_of = [int(np.floor(np.log2(each))) for each in values if each]
    assert layer.histogram == {each: exponents_of.count(each) for each in set(exponents_of)}
    shares = np.mean(values == 0), np.mean((values > 0) & (values < 2.0**-14))
    return ledger.shares_of([layer]) == pytest.approx(shares) and layer.largest == values.max()


# ---------------------------------------------------------------------- counts


@pytest.mark.parametrize("dtypes", [dict.fromkeys(SHAPES, "float32"), {}, {"fc_bias": "float32"}], ids=str)
def test_each_parameter_is_counted(dtypes):
    ledger = Run(SHAPES, dtypes).step(GRADS)
    assert all(is_as(ledger, name, GRADS[name]) for name in SHAPES)
    assert [layer.elements for layer in ledger.layers] == [8, 5]


def test_samples_and_contexts_add_up_each_counted_for_itself():
    run, values = Run({"w": (2,)}, contexts=2), np.float16([[[0, 1], [2, 2.0**-20]], [[0, 0], [0, 8]]])
    for contexts in values:
        run.step({"w": list(contexts)})
    assert is_as(run.ledger, "w", values) and run.layers["w"].elements == 2


@pytest.mark.parametrize("values, exponents_of, numbers", [(2.0 ** np.arange(8), [0, 3, 6], (8, 3, 0)),
                                                          ([np.inf, 1, 2, 4, 8], [0, 3], (5, 2, 1))])  # fmt: skip
def test_one_step_in_so_many_is_a_sample_and_the_next_one_if_that_is_skipped(values, exponents_of, numbers):
    run = Run({"w": (1,)}, every=3)
    for value in values:
        run.step({"w": value})
    assert list(run.layers["w"].histogram) == exponents_of
    assert (run.ledger.steps, run.ledger.sampled, run.ledger.skipped) == numbers


def test_shares_are_those_of_the_last_sample():
    run = Run(SHAPES)
    assert run.ledger.shares() == {}
    run.step(dict.fromkeys(SHAPES, 1.0))
    shares = {"zero_share": pytest.approx(5 / 13), "subnormal_share": pytest.approx(3 / 13), "largest": 40000}
    assert run.step(GRADS).shares() == shares


def test_counts_of_a_gpu_are_read_a_sample_later(monkeypatch):
    reads, count = [], exponents.count_exponents

    def begin(arrays):
        read = count(arrays)
        return lambda: reads.append(len(arrays)) or read()

    monkeypatch.setattr(ledgers, "count_exponents", begin)
    monkeypatch.setattr(ledgers, "on_gpu", lambda _: True)
    run, noted = Run({"w": (1,)}, every=2), []
    for number in range(5):
        run.step({"w": 2.0**number})
        noted.append((bool(reads), run.ledger.shares().get("largest")))
    assert noted == [(False, None), (False, None), (True, 1.0), (True, 1.0), (True, 4.0)]
    run.ledger.detach()
    assert run.layers["w"].largest == 16.0


def test_the_gradients_with_the_smallest_share_that_is_not_finite_are_the_first_of_a_skip():
    run = Run({"first": (4,), "second": (4,), "third": (4,)})
    run.step({"first": np.nan, "second": np.float16([np.inf, 1, 1, 1]), "third": 1.0})
    run.step({"first": np.nan, "second": np.nan, "third": 1.0})
    assert {name: layer.skips.get(10, 0) for name, layer in run.layers.items()} == {"first": 1, "second": 2, "third": 0}
    assert run.layers["third"].elements == 4


def test_the_gradients_of_a_skipped_step_are_read_once_for_logs_and_ledger(tmp_path, monkeypatch):
    run, read, count = Run({"b": (1,), "a": (2,), "c": (1,)}, every=20), [], exponents.count_exponents
    logs = [CSVLogger(str(tmp_path / name)).attach(run.trainer) for name in ("first.csv", "second.csv")]
    run.step(dict.fromkeys("abc", 1.0))
    monkeypatch.setattr(exponents, "count_exponents", lambda grads: read.append(len(grads)) or count(grads))
    run.step({"a": np.float32([np.inf, 1]), "b": np.nan, "c": 1.0})
    for log in logs:
        log.close()
    lines = [(tmp_path / name).read_text().splitlines()[2] for name in ("first.csv", "second.csv")]
    assert read == [3] and all("gradients not finite: 'a' (50 %), 'b' (100 %)" in line for line in lines)


@pytest.mark.parametrize("rate", [0.001, 0.1])
def test_an_update_is_lost_where_the_weight_stays_what_it_was(rate):
    run = Run({"w": (3,)}, learning_rate=rate, multi_precision=False)
    grads = np.float32([0.1, 0, 4])  # true ones; half a bit of 1.0 is 2**-11 above it, 2**-12 below
    run.step({"w": grads * 1024})
    moved = np.float16(1) - np.float16(rate) * grads.astype(np.float16) != 1
    assert run.layers["w"].lost_share == 1 - np.mean(moved[grads != 0])


# ---------------------------------------------------------------------- first rule: a scale that is too low

HEALTHY = "Nothing is wrong with the gradients that were seen."


def lognormal(median, spread, size=20000, zeros=0.0, seed=0):
    """Return values whose log2 is normal around a median's, with a standard deviation in binades, some of them 0."""
    random = np.random.RandomState(seed)
    values = random.choice([-1, 1], size) * 2.0 ** (np.log2(median) + spread * random.standard_normal(size))
    return values * (random.rand(size) >= zeros)


def seen(true, scale=1024.0, dtype="float16", **options):
    """Return a ledger of a run in which true gradients, float64 arrays by name, came out of float16 at a scale."""
    run = Run({name: values.shape for name, values in true.items()}, dict.fromkeys(true, dtype), loss_scale=scale)
    return run.step({name: (values * scale).astype(np.float16) for name, values in true.items()}, **options)


@pytest.mark.parametrize("spread, zeros", [(1, 0.7), (2, 0), (6, 0), (6, 0.7)])
def test_a_scale_that_leaves_a_layer_subnormal_is_too_low_and_the_one_that_is_advised_is_not(spread, zeros):
    true = lognormal(2.0**-24, spread, zeros=zeros)
    advice = seen({"fc_weight": true, "body_weight": lognormal(2.0**-6, 1, 1000)}, scale=1.0).advice()
    (sentence,) = advice.sentences
    assert sentence.startswith("At the scale of 1 an estimated ") and "most of 'fc_weight' (" in sentence
    assert f"such as 2**{np.log2(advice.scale):g}: 2**{np.log2(advice.highest):g} at the most" in sentence
    assert str(seen({"fc_weight": true}, scale=advice.scale).advice()) == HEALTHY


@pytest.mark.parametrize(
    "true, scale",
    [
        (lognormal(2.0**-12, 1, zeros=0.999), 2.0**12),
        (lognormal(2.0**-12, 3, zeros=0.9), 2.0**12),
        (np.where(np.arange(100000) < 30, 2.0**-24, lognormal(2.0**-8, 2, 100000, 0.5)), 1.0),  # what rounding left of 0
        (np.random.RandomState(0).uniform(-1e-3, 1e-3, 50000), 64.0),
    ],
    ids=["zeros", "wide", "stray", "uniform"],
)
def test_healthy_gradients_are_no_reason_for_advice(true, scale):
    assert str(seen({"w": true}, scale).advice()) == HEALTHY


def test_gradients_of_float32_are_not_judged_but_say_which_scale_would_fit():
    run = Run({"gamma": (20000,), "w": (100,)}, {"gamma": "float32"}, loss_scale=1.0)
    advice = run.step({"gamma": lognormal(2.0**-30, 2), "w": np.full(100, 2.0**-8)}).advice()
    assert advice.sentences == () and 2.0**4 < advice.highest < 2.0**40


def test_a_dynamic_scale_grows_by_itself_and_a_full_range_leaves_no_room():
    true = lognormal(2.0**-20, 1)
    run = Run({"w": true.shape}, loss_scale=DynamicLossScale(init_scale=1.0))
    assert str(run.step({"w": true.astype(np.float16)}).advice()) == HEALTHY
    assert str(seen({"w": true, "loud": np.full(9, 2.0**13)}, scale=1.0).advice()) == HEALTHY


@pytest.mark.parametrize("largest, highest", [(3.0, 2.0**12), (2.0**-10, 2.0**23)])
def test_the_highest_scale_leaves_a_margin_below_the_largest_gradient(largest, highest):
    advice = seen({"w": np.float64([0.5 * largest, -largest])}).advice()
    assert advice.highest == highest and largest * highest * 4 <= 65504 < largest * highest * 8 * 2
    assert advice.scale == highest / 16


def test_a_layer_without_any_gradient_is_named_once_there_are_two_samples():
    run = Run({"w": (40,), "box_weight": (40,), "bn_gamma": (40,)}, loss_scale=8.0)
    grads = {"w": 1.0, "box_weight": 0.0, "bn_gamma": 0.0}  # a gamma may be fixed
    assert run.step(grads).advice().sentences == ()
    assert run.step(grads).advice().sentences == (
        "All gradients of 'box_weight' were 0: they vanish, which a larger scale shows, or the loss does not depend on "
        "this layer.",
    )


# ---------------------------------------------------------------------- second rule: steps that are not taken

CAUSE = "The scale is hardly the cause"


@pytest.mark.parametrize(
    "scales, options, text",
    [
        ([2.0**12] * 2, {"taken": 8, "loss_scale": 2.0**12, "value": 2.0**14},
         "At the scale of 4096 2 of 10 steps were skipped, first in the gradients of 'w'. Scale the loss by 2**9 at most; "
         "if steps are skipped there too, ask a Watch or mxmp.diagnose.explain."),
        ([2.0**10] * 2, {"taken": 38},
         f"At the scale of 1024 2 of 40 steps were skipped, first in the gradients of 'w'. {CAUSE}, for the gradients of "
         "those that were taken stay far from overflow: mxmp.diagnose.explain or a Watch names what is."),
        ([64.0, 8.0, 1.0, 1.0], {"taken": 30},
         f"The last 4 steps were skipped, down to the scale of 1, first in the gradients of 'w'. {CAUSE}, for 30 steps "
         "were taken at larger ones: mxmp.diagnose.explain or a Watch names what is."),
        ([64.0, 8.0, 1.0, 1.0], {"taken": 1}, "for 1 step was taken at larger ones: "),
        ([1.0] * 4, {"taken": 1, "loss_scale": 1.0}, "at the scale of 1"),
        ([64.0, 8.0, 1.0, 1.0], {}, f"{CAUSE}: mxmp.diagnose.explain"),
        ([2.0**20] * 3, {}, "At the scale of 1.04858e+06 3 of 3 steps were skipped"),
    ],
)  # fmt: skip
def test_skips_are_the_scale_s_or_not(scales, options, text):
    run = Run({"w": (4,), "v": (4,)}, loss_scale=options.get("loss_scale", 1024.0))
    run.step(dict.fromkeys("wv", options.get("value", 1.0)), options.get("taken", 0))
    for run.trainer.loss_scale in scales:
        run.step({"w": np.float16([np.inf, 0, 0, 0]), "v": np.nan})
    advice = run.ledger.advice()
    assert len(advice.sentences) == 1 and text in advice.sentences[0] and not advice.diverges
    assert scales != [1.0] * 4 or advice.scale is advice.highest is None  # no scale mends that


def test_skips_by_which_a_dynamic_scale_finds_its_place_are_healthy():
    run = Run({"w": (1,)}, loss_scale=DynamicLossScale(init_scale=2.0**16, growth_interval=50))
    for _ in range(120):
        scaled = 4.0 * run.trainer.loss_scale.value
        run.step({"w": scaled if scaled <= 65504 else np.inf})
    assert run.ledger.skipped >= 3 and run.ledger.advice().sentences == ()


def trained(rate, policy="O1", steps=8, bad=0, every=20, **options):
    """Return a ledger of a network that is trained with a learning rate; whatever a step raises, the next is made.

    The data of the last ``bad`` steps holds a NaN; ``options`` are of the last layer.
    """
    mx.random.seed(0)
    net, random, loss = dense(16, 16, activation="relu"), np.random.RandomState(0), gluon.loss.L2Loss()
    net.add(gluon.nn.Dense(4, prefix="net_last_", **options))
    data, labels = mx.nd.array(random.randn(32, 16)), mx.nd.array(random.randn(32, 4))
    net.initialize(mx.init.Xavier())
    net(data)
    trainer = trainer_of(mxmp.gluon.convert(net, policy), "dynamic", learning_rate=rate)
    ledger = Ledger(every).attach(trainer)
    for number in range(steps):
        data[0, 0] = np.nan if number >= steps - bad else data[0, 0]
        with contextlib.suppress(NonFiniteLossError, LossScaleError):
            step(trainer, lambda: loss(net(data), labels), 32)
    return ledger


@pytest.mark.parametrize(("rate", "policy"), [(1e6, "O2"), (100.0, "O1")])
def test_a_learning_rate_that_is_far_too_high_is_told(rate, policy):
    ledger = trained(rate, policy)
    advice = ledger.advice()
    assert advice.diverges and advice.sentences[-1].startswith("The run diverges: in most layers weights are ")
    assert "lower the learning rate or clip gradients" in advice.sentences[-1] and advice.highest is None
    assert Ledger.from_dict(ledger.to_dict()).advice() == advice


@pytest.mark.parametrize(
    "options",
    [{"rate": 0.05}, {"rate": 0.001, "steps": 60, "bad": 4, "every": 1, "weight_initializer": "zeros"}],
    ids=["learns", "data is NaN"],
)
def test_a_run_that_does_not_diverge_is_not_said_to(options):
    assert not trained(**options).advice().diverges


def test_weights_tell_one_layer_that_overflows_from_a_run_that_diverges():
    """With the learning rate weights go from 1 to -3 in a step."""
    for rate, grown in ((2048.0, False), (8192.0, True)):
        run = Run({"a": (3,), "b": (3,), "c": (3,)}, learning_rate=rate)
        run.step(dict.fromkeys("abc", 1.0))
        for _ in range(4):
            run.step({"a": np.float16([np.inf, 60000, 0]), "b": 1.0, "c": np.nan})
        advice = run.ledger.advice()
        assert advice.diverges == grown and grown != ("first in the gradients of 'a'" in advice.sentences[0])


def test_a_loss_that_is_not_finite_is_said_to_be():
    run = Run({"w": (2,)})
    run.step({"w": 1.0})
    with pytest.raises(NonFiniteLossError):
        step(run.trainer, lambda: mx.nd.array([np.nan]) * run.params[0].data().astype("float32").sum())
    (sentence,) = run.ledger.advice().sentences
    assert sentence.startswith("The loss itself was NaN or inf in 1 step, which no loss scale mends")


# ---------------------------------------------------------------------- third rule: updates that are lost


@pytest.mark.parametrize(
    "rate, dtype, masters, said",
    [(1e-4, "float16", False, True), (0.5, "float16", False, False), (1e-6, "float16", True, False), (1e-6, "float32", False, False)],
)
def test_updates_that_are_lost_want_masters(rate, dtype, masters, said):
    run = Run({"fc_weight": (100,)}, {"fc_weight": dtype}, learning_rate=rate, multi_precision=masters)
    sentence = (
        "100% of the updates are lost, below half a bit of their weight, most of 'fc_weight'. "
        "Keep float32 masters: multi_precision=True."
    )
    assert run.step({"fc_weight": 1024.0}).advice().sentences == ((sentence,) if said else ())
    assert (run.layers["fc_weight"].lost_share is None) == (masters or dtype == "float32")


# ---------------------------------------------------------------------- what is shown and kept


def rows(text):
    """Return the cells of a printed table's rows by the first of them."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in cells}


def test_the_table_has_a_row_for_each_parameter_those_that_lose_most_first(tmp_path):
    ledger = seen({"a_weight": np.float64([1, 2]), "b_weight": np.float64([0, 2.0**-30]), "c\x1b[31m\n": np.ones(4)})
    text, page = str(ledger), ledger.to_html(str(tmp_path / "page.html"))
    assert list(rows(text))[0] == "b_weight" and "\x1b" not in text
    assert rows(text)["b_weight"] == ["2", "50 %", "50 %", "9.54e-07", "0"]
    assert rows(text)["c\\x1b[31m\\n"] == ["4", "0 %", "0 %", "1,024", "0"]
    assert "float16, 1 sample in 1 step, one in 1" in " ".join(text.split())
    assert all("a_weight" in each.replace("<wbr>", "") for each in (page, ledger._repr_html_()))
    assert (tmp_path / "page.html").read_text() == page


def test_advice_comes_with_the_table_and_many_layers_are_cut_short():
    text = str(seen({f"w{n}": lognormal(2.0**-22, 1, 100) for n in range(25)}, scale=1.0))
    assert len(rows(text)) == 20 and "20 of 25 layers" in text and "Advice: At the scale of 1 an estimated" in text


def test_what_is_loaded_is_what_was_saved_and_goes_on(tmp_path):
    path, run = str(tmp_path / "ledger.json"), Run(SHAPES, multi_precision=False, every=2)
    run.step(GRADS, 2)
    run.step({**GRADS, "fc_bias": np.inf})
    run.ledger.save(path)
    loaded = Ledger.load(path)
    assert json.loads((tmp_path / "ledger.json").read_text()) == run.ledger.to_dict() == loaded.to_dict()
    assert len({loaded, run.ledger}) == 2  # an observer is never another
    assert str(loaded) == str(run.ledger) and repr(loaded) == "Ledger(every=2, dtype='float16', steps=3, sampled=1)"
    run.ledger.detach()
    loaded.attach(run.trainer)
    run.step(GRADS)
    assert (loaded.steps, loaded.sampled, loaded.layers[1].lost_share) == (4, 2, 1.0)
