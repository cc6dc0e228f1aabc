"""Both learners of word_lm, made small, and their weights under common names."""

from __future__ import annotations

import mxnet as mx
import numpy as np

import mxmp
from examples.word_lm import train_gluon, train_module
from examples.word_lm.settings import Hyperparameters
from examples.word_lm.text import Text
from tests.examples.common.small import options
from tests.examples.scripts import WORDS

LEARNERS = {"gluon": train_gluon.GluonLearner, "module": train_module.ModuleLearner}
CPU = (mx.cpu(),)
TWO = (mx.cpu(0), mx.cpu(1))
ROWS, LENGTH, HIDDEN, LAYERS = 4, 5, 8, 2


def hyperparameters(**changes):
    values = {"length": LENGTH, "hidden": HIDDEN, "layers": LAYERS, "dropout": 0.0, "tied": True}
    return Hyperparameters(**{**values, "clip": 1e6, "learning_rate": 0.01, **changes})


def learner(kind, policy="O0", loss_scale=None, ctx=CPU, **changes):
    """Return a learner, its batches to train on, and those held out."""
    policy, scale = mxmp.Policy.parse(policy), mxmp.loss_scale.parse(loss_scale)
    given = options(None, policy=policy, loss_scale=scale, ctx=ctx, epochs=1, batch_size=ROWS)
    text = Text(4 * WORDS, WORDS, 6, LENGTH)
    return (
        LEARNERS[kind](text, given, hyperparameters(**changes)),
        list(text.train(ROWS, 0, 0)),
        list(text.test(ROWS)),
    )


def arrays(found):
    """Return float32 weights by name, as the symbol of either kind calls them."""
    if isinstance(found, train_module.ModuleLearner):
        return {name: array.asnumpy() for name, array in found._module.get_params()[0].items()}
    return {name: param._reduce().asnumpy() for name, param in found._net.collect_params().items()}


def gradients(found):
    """Return the gradients of the last step, as clip_global_norm left them, by the same names."""
    if isinstance(found, train_module.ModuleLearner):
        group = found._module._curr_module._exec_group
        return {name: grads[0].asnumpy() for name, grads in zip(group.param_names, group.grad_arrays)}
    return {name: param.grad().asnumpy() for name, param in found._net.collect_params().items()}


def as_module(values):
    """Return a Gluon model's weights, or their gradients, under the names of the symbol."""
    lstm = [n for n in values if "_lstm_" in n]  # MXNet's RNN operator wants weights first, then biases
    ordered = [n for n in lstm if n.endswith("weight")] + [n for n in lstm if n.endswith("bias")]
    result = {
        "embed_weight": values["lm_embedding_weight"],
        "lstm_parameters": np.concatenate([values[n].ravel() for n in ordered]),
    }
    tied = "lm_decoder_weight" not in values
    result["pred_bias"] = values["lm_embedding_bias" if tied else "lm_decoder_bias"]
    return result if tied else {**result, "pred_weight": values["lm_decoder_weight"]}


def plain(found, folder):
    """Save a learner's network; return what plain MXNet loads: its symbol and float32 weights."""
    part = found.parts["model"]
    part.symbol.save(str(folder / "model-symbol.json"))
    part.save_params(str(folder / "model-0000.params"))
    symbol, arg_params, aux_params = mx.model.load_checkpoint(str(folder / "model"), 0)
    assert not aux_params
    return symbol, arg_params


def predict(symbol, arg_params, words):
    """Return what plain MXNet gives for words (N, T) after zeros, as probabilities (N, T, vocabulary), float64."""
    inputs = [name for name in symbol.list_arguments() if name not in arg_params]
    state = (LAYERS, len(words), HIDDEN)
    given = {name: mx.nd.zeros(words.shape if name == "softmax_label" else state) for name in inputs}
    executor = symbol.bind(mx.cpu(), {**arg_params, **given, "data": mx.nd.array(words)}, grad_req="null")
    output = executor.forward()[0].asnumpy().astype(np.float64).reshape(*words.shape, -1)
    if "softmax_label" in inputs:
        return output
    return np.exp(output) / np.exp(output).sum(axis=2, keepdims=True)
