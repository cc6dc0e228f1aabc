"""The directive ``network``: a small network under a policy, drawn from mxmp's own report when the pages are built."""

import html

import mxmp  # before mxnet
import mxnet as mx
import numpy as np
from docutils import nodes
from docutils.parsers.rst import Directive
from mxnet.gluon import nn

NAMES = {"FullyConnected": "Dense", "Activation": "relu"}
PARAMETERS = {"Convolution": "conv0_", "BatchNorm": "batchnorm0_", "FullyConnected": "dense0_"}
TOP, STEP, HEIGHT = 62, 78, 40  # units of the drawing
LEFT, MIDDLE, CENTER, WIDTH = 132, 181, 315, 170  # right end of weights, their casts; middle and width of operators


def make(policy):
    """Return the network of the page, converted to a policy and called once."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(16, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(10), nn.HybridLambda("softmax"))
    net.initialize()
    mxmp.gluon.convert(net, policy)
    net(mx.nd.ones((8, 3, 32, 32)))
    return net


def box(x, y, width, text, dtype):
    """Return a rectangle in the colour of a dtype, with a text."""
    rect = f'<rect class="{dtype}" x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="6"/>'
    return rect + label(x + width / 2, y + 25, text)


def label(x, y, text, kind="text"):
    """Return a text around a point."""
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="middle">{html.escape(text)}</text>'


def cast(x, y, dtype):
    """Return the mark of a cast to a dtype."""
    rect = f'<rect class="{dtype}" x="{x - 37}" y="{y - 11}" width="74" height="22" rx="11"/>'
    return rect + label(x, y + 5, f"to {dtype}", "small")


def line(x, y, to):
    """Return an arrow from one place to another."""
    return f'<path d="M{x} {y} {to}"/>'


def draw(policy):
    """Return the drawing as SVG: operators from top to bottom, their parameters on the left, casts on the lines."""
    net = make(policy)
    dtypes = {param.name: np.dtype(param.dtype).name for param in net.collect_params().values()}
    rows = mxmp.gluon.report(net).rows
    parts = [label(CENTER, TOP - STEP + HEIGHT - 5, "data, float32")]
    for number, row in enumerate(rows):
        y = TOP + STEP * number
        casts = {each.tensor: each.dtype for each in row.casts}
        parts.append(line(CENTER, y - STEP + HEIGHT, f"V{y}"))
        parts += [cast(CENTER, y - 19, dtype) for tensor, dtype in casts.items() if tensor not in dtypes]
        weights = [name for name in dtypes if name.startswith(f"net_{PARAMETERS.get(row.op)}")]
        if weights:
            stored = dtypes[weights[0]]
            parts.append(line(LEFT, y + HEIGHT / 2, f"H{CENTER - WIDTH / 2}"))
            parts.append(box(0, y, LEFT, f"weights, {stored}", stored))
            parts += [cast(MIDDLE, y + HEIGHT / 2, casts[name]) for name in weights[:1] if name in casts]
        text = f"{NAMES.get(row.op, row.op)}, {row.precision}"
        parts.append(box(CENTER - WIDTH / 2, y, WIDTH, text, row.precision))
    end = TOP + STEP * len(rows)
    parts += [line(CENTER, end - STEP + HEIGHT, f"V{end - 14}"), label(CENTER, end + 2, "output, float32")]
    title = ", ".join(f"{NAMES.get(row.op, row.op)} in {row.precision}" for row in rows)
    start = f'<svg viewBox="-2 0 404 {end + 10}" role="img" aria-label="A network under {policy}: {title}">'
    caption = f"<figcaption>The network under {policy}</figcaption>"
    return f'<figure class="network">{start}{"".join(parts)}</svg>{caption}</figure>'


class Network(Directive):
    """The drawing of the network under one policy, its argument."""

    required_arguments = 1

    def run(self):
        """Return the drawing."""
        return [nodes.raw("", draw(self.arguments[0]), format="html")]


def setup(app):
    """Add the directive."""
    app.add_directive("network", Network)
    return {"parallel_read_safe": True}
