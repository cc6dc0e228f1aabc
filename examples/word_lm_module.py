"""A language model with BucketingModule
=====================================

Trains an LSTM on lines of text in mixed precision, with a bucket for each length and MXNet's ``BucketSentenceIter``.
All buckets share one policy, one loss scale and one set of float32 masters. The loop is MXNet's. It clips gradients by
their global norm.

Run ``python word_lm_module.py --epochs 2 --lines 2000 --vocabulary 500`` on the source of Python's standard library.
``--text`` takes a file::

    epoch 1: perplexity 55.75, loss scale 32768, 0 steps skipped
    epoch 2: perplexity 32.41, loss scale 32768, 0 steps skipped
"""

import argparse

import mxmp  # before mxnet
import mxnet as mx
import numpy as np

from plots import curves  # next to this file
from sample_data import lines, numbers  # next to this file: reads a text

parser = argparse.ArgumentParser(description="Train an LSTM language model with BucketingModule.")
parser.add_argument("--text", metavar="FILE", help="in UTF-8; default: modules of Python's standard library")
parser.add_argument("--lines", type=int, default=20000, help="of the text that are read; an eighth is held out")
parser.add_argument("--vocabulary", type=int, default=2000, help="words told apart")
parser.add_argument("--hidden", type=int, default=100, help="units of each layer")
parser.add_argument("--policy", default="O1,op:RNN=float16", help="O1 alone keeps the LSTM in float32, O0 all")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
ctx = mx.gpu() if mx.context.num_gpus() else mx.cpu()
BATCH_SIZE, BUCKETS, PADDING = 32, [8, 16, 32], 0
mx.random.seed(args.seed)
np.random.seed(args.seed)


def read_sentences():
    """Return the lines of a text as lists of numbers; 0 pads, 1 is a rare word, 2 the end of a line."""
    sentences = [line for line in lines(args.text) if line][: args.lines]
    number = numbers((word for line in sentences for word in line), args.vocabulary, first=3)
    return [[2, *(number.get(word, 1) for word in line), 2] for line in sentences]


def make_symbol(length):
    """Return the network for one length, and the names of its inputs and labels."""
    embedded = mx.sym.Embedding(mx.sym.var("data"), input_dim=args.vocabulary, output_dim=args.hidden, name="embedding")
    states = [mx.sym.zeros((1, 0, args.hidden), name=name) for name in ("state", "cell")]  # 0: of the batch's size
    outputs = mx.sym.RNN(
        mx.sym.Dropout(embedded.transpose((1, 0, 2)), p=0.2),  # (T, N, hidden)
        mx.sym.var("lstm_parameters", init=mx.init.FusedRNN(None, args.hidden, 1, "lstm")),
        *states,
        state_size=args.hidden,
        num_layers=1,
        mode="lstm",
        name="lstm",
    )
    rows = mx.sym.Dropout(outputs.transpose((1, 0, 2)), p=0.2).reshape((-1, args.hidden))
    logits = mx.sym.FullyConnected(rows, num_hidden=args.vocabulary, name="decoder")
    labels = mx.sym.reshape(mx.sym.var("softmax_label"), shape=(-1,))
    ignore = {"use_ignore": True, "ignore_label": PADDING, "normalization": "valid"}  # the gradient is a mean
    return mx.sym.SoftmaxOutput(logits, labels, name="softmax", **ignore), ("data",), ("softmax_label",)


sentences = read_sentences()
held_out_lines = sentences[-len(sentences) // 8 :]
training, held_out = (
    mx.rnn.BucketSentenceIter(part, BATCH_SIZE, buckets=BUCKETS, invalid_label=PADDING)
    for part in (sentences[: -len(held_out_lines)], held_out_lines)
)
module = mxmp.module.BucketingModule(make_symbol, training.default_bucket_key, context=ctx, policy=args.policy)
module.bind(training.provide_data, training.provide_label)
module.init_params(mx.init.Xavier(factor_type="in", magnitude=2.34))
module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.004, "rescale_grad": 1.0})
perplexity = mx.metric.Perplexity(ignore_label=PADDING)

history = []
for epoch in range(1, args.epochs + 1):
    training.reset()
    for batch in training:
        module.forward_backward(batch)
        module.clip_global_norm(0.25)  # of the true gradients, which are means already: no batch size
        module.update()  # skipped, and the loss scale lowered, if a gradient is not finite
    ((_, value),) = module.score(held_out, perplexity)
    text = f"epoch {epoch}: perplexity {value:.2f}"
    history.append((value, module.loss_scale.value))
    print(f"{text}, loss scale {module.loss_scale.value:g}, {module.skipped_steps} steps skipped", flush=True)
module.save_checkpoint("language_model", args.epochs)  # in float32
perplexities, scales = zip(*history)
curves("word_lm_module.png", "Words of Python's standard library", "epoch", perplexity=perplexities, loss_scale=scales)
