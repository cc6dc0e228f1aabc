"""The DCGAN script, run small."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
import scipy.linalg
from matplotlib.image import imread
from mxnet import autograd, gluon

import mxmp
from examples.gan import train
from examples.gan.data import Digits
from examples.gan.figures import frechet_distance, save_grid
from examples.gan.networks import NOISE, make_discriminator, make_generator
from tests.examples import scripts
from tests.examples.common.small import options

CPU = (mx.cpu(),)


def learner(loss_scale=None, policy="O0", ctx=CPU):
    policy, scale = mxmp.Policy.parse(policy), mxmp.loss_scale.parse(loss_scale)
    return train.GanLearner(16, 4, options(None, policy=policy, loss_scale=scale, ctx=ctx, batch_size=8), 0.01)


def values(found, trained=False):
    """Return parameters; only weights if trained, not running statistics, which a step without an update may move."""
    params = [*found._generator.collect_params().values(), *found._discriminator.collect_params().values()]
    params = [param for param in params if not trained or param.grad_req != "null"]
    return [param._reduce().asnumpy() for param in params]


@pytest.fixture(scope="module")
def images():
    return next(Digits(16).train(8, 0, 0))


def test_the_digits_are_split_without_overlap():
    data = Digits(16)
    parts = [np.concatenate([batch.asnumpy() for batch in one]) for one in (data.train(100, 0, 0), data.test(100))]
    assert [part.shape for part in parts] == [(1200, 1, 16, 16), (597, 1, 16, 16)]
    train_images, test_images = ({image.tobytes() for image in part} for part in parts)
    assert not train_images & test_images
    assert -1 == parts[0].min() < parts[0].max() == 1


def test_an_epoch_has_each_image_once_in_an_order_of_its_own():
    data = Digits(16)
    first, second = (np.concatenate([b.asnumpy() for b in data.train(100, epoch, 0)]) for epoch in (0, 1))
    assert (first != second).any()
    assert sorted(map(np.ndarray.tobytes, first)) == sorted(map(np.ndarray.tobytes, second))


@pytest.mark.parametrize("size", [16, 32])
def test_the_networks_fit_each_other(size):
    generator, discriminator = make_generator(size, 4), make_discriminator(size, 4)
    for net in (generator, discriminator):
        net.initialize()
    drawn = generator(mx.nd.random.normal(shape=(3, NOISE)))
    assert drawn.shape == (3, 1, size, size)
    assert abs(drawn).max() <= 1
    assert discriminator(drawn).shape == (3, 1)


def test_the_distance_is_that_of_the_formula():
    rng = np.random.RandomState(0)
    first, second = rng.randn(200, 1, 8, 8), 0.5 * rng.randn(300, 1, 8, 8) + 1
    (mean, covariance), (other_mean, other) = (
        (x.mean(0), np.cov(x.T)) for x in (first.reshape(200, 64), second.reshape(300, 64))
    )
    root = scipy.linalg.sqrtm(covariance @ other).real
    expected = ((mean - other_mean) ** 2).sum() + np.trace(covariance + other - 2 * root)
    assert frechet_distance(first, second) == pytest.approx(expected, rel=1e-6)


def test_the_distance_of_images_from_themselves_is_0():
    images = np.concatenate([batch.asnumpy() for batch in Digits(16).test(597)])
    assert frechet_distance(images, images) == pytest.approx(0, abs=1e-6)


def test_the_picture_has_the_images_in_rows(tmp_path):
    images = np.linspace(-1, 1, 5 * 2 * 3).reshape(5, 1, 2, 3)
    save_grid(images, tmp_path / "grid.png", columns=2)
    shown = imread(tmp_path / "grid.png")[:, :, 0] * 2 - 1
    expected = np.block([[images[0, 0], images[1, 0]], [images[2, 0], images[3, 0]]])
    np.testing.assert_allclose(shown, expected, atol=0.02)


def plain_step(generator, discriminator, trainers, images):
    """DCGAN's step with MXNet alone."""
    loss = gluon.loss.SigmoidBinaryCrossEntropyLoss()
    with autograd.record():
        drawn = generator(mx.nd.random.normal(shape=(len(images), NOISE)))
        real, fake = discriminator(images), discriminator(drawn.detach())
        total = loss(real, mx.nd.ones_like(real)) + loss(fake, mx.nd.zeros_like(fake))
    total.backward()
    trainers[1].step(len(images))
    with autograd.record():
        verdict = discriminator(drawn)
        wanted = loss(verdict, mx.nd.ones_like(verdict))
    wanted.backward()
    trainers[0].step(len(images))
    return float(wanted.mean().asscalar())


@pytest.mark.parametrize("loss_scale", [None, 1024.0])
def test_steps_in_float32_are_those_of_mxnet(images, loss_scale):
    found = learner(loss_scale)
    start = values(found)
    nets = make_generator(16, 4), make_discriminator(16, 4)
    params = [param for net in nets for param in net.collect_params().values()]
    for net in nets:
        net.initialize()
    for param, value in zip(params, start):
        param.set_data(mx.nd.array(value))
    trainers = [gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01, "beta1": 0.5}) for net in nets]
    for number in range(2):
        mx.random.seed(number)
        gave = found.step(images)
        mx.random.seed(number)
        assert gave["loss/generator"] == pytest.approx(plain_step(*nets, trainers, images), rel=1e-4)
    for param, value, before in zip(params, values(found), start):
        np.testing.assert_allclose(value, param.data().asnumpy(), rtol=1e-3, atol=1e-4, err_msg=param.name)
        assert (value != before).any(), param.name


def test_a_scale_too_large_falls_once_a_step_and_nothing_is_learned(images):
    found = learner(mxmp.loss_scale.DynamicLossScale(init_scale=2.0**100, max_scale=2.0**120), "O2")
    start = values(found, trained=True)
    found.step(images)
    assert found.loss_scale == 2.0**99
    assert found.skipped_steps == 1
    for value, before in zip(values(found, trained=True), start):
        np.testing.assert_array_equal(value, before)


def test_two_contexts_share_a_batch(images):
    found = learner(ctx=(mx.cpu(0), mx.cpu(1)))
    assert np.isfinite(list(found.step(images).values())).all()
    (first, second) = found._generator[0].weight.list_data()
    np.testing.assert_array_equal(first.asnumpy(), second.asnumpy())


@pytest.mark.parametrize("policy", ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_run_gives_a_table_a_plot_and_a_picture(tmp_path, policy):
    _, text = scripts.train("gan", tmp_path, "--policy", policy, "--epochs", 1)
    assert "test distance" in text
    assert train.PICTURE in text.split("drawn images ")[1]
    assert imread(tmp_path / "run.png").size
    assert imread(tmp_path / train.PICTURE).shape[:2] == (128, 128)
