"""What is saved of a network and its trainer."""

from __future__ import annotations

import mxnet as mx
import numpy as np

from tests.examples.common.small import INPUTS, Numbers, Small, options, params_of, trained_module


def trained(tmp_path):
    learner = Small(options(tmp_path))
    for batch in Numbers().train(4, 0, 0):
        learner.step(batch)
    return learner


def test_a_gluon_networks_files_load_in_plain_mxnet(tmp_path):
    learner = trained(tmp_path)
    part = learner.parts["small"]
    part.symbol.save(str(tmp_path / "small-symbol.json"))
    part.save_params(str(tmp_path / "small-0000.params"))
    symbol, arg_params, aux_params = mx.model.load_checkpoint(str(tmp_path / "small"), 0)
    assert {array.dtype for array in [*arg_params.values(), *aux_params.values()]} == {np.float32}
    assert {name: array.asnumpy().tolist() for name, array in {**arg_params, **aux_params}.items()} == {
        name: array.tolist() for name, array in params_of(learner).items()
    }
    assert "cast" not in symbol.tojson()
    executor = symbol.simple_bind(mx.cpu(), data=(2, INPUTS), grad_req="null")
    executor.copy_params_from(arg_params, aux_params)
    images = mx.nd.random.normal(shape=(2, INPUTS))
    mixed = learner.net(images).asnumpy()
    np.testing.assert_allclose(executor.forward(data=images)[0].asnumpy(), mixed, rtol=0.02, atol=0.02)


def test_a_gluon_part_goes_on_to_the_bit(tmp_path):
    first, second = trained(tmp_path), Small(options(tmp_path, seed=5))
    files = str(tmp_path / "params"), str(tmp_path / "states")
    first.parts["small"].save_params(files[0])
    first.parts["small"].save_states(files[1])
    second.parts["small"].load_params(files[0])
    second.parts["small"].load_states(files[1])
    for learner in (first, second):
        mx.random.seed(1)
        learner.step(next(Numbers().train(4, 1, 0)))
    for name, value in params_of(first).items():
        assert (value == params_of(second)[name]).all(), name


def test_a_trained_module_gives_back_what_it_saved(tmp_path):
    files = str(tmp_path / "params"), str(tmp_path / "states")
    (_, first), (module, second) = trained_module(), trained_module()
    first.save_params(files[0])
    first.save_states(files[1])
    second.load_params(files[0])
    second.load_states(files[1])
    again = str(tmp_path / "again")
    second.save_params(again)
    saved, found = mx.nd.load(files[0]), mx.nd.load(again)
    assert set(saved) == set(found)
    assert all((saved[name] == found[name]).min().asscalar() == 1 for name in saved)
    assert first.symbol.tojson() == module.symbol.tojson()
