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
TOP, STEP, HEIGHT = 60, 74, 38  # units of the drawing: the first box, from box to box, of a box


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
    return f'{rect}<text x="{x + width / 2}" y="{y + 24}" text-anchor="middle">{html.escape(text)}</text>'


def cast(x, y, dtype):
    """Return the mark of a cast to a dtype."""
    rect = f'<rect class="{dtype} cast" x="{x - 52}" y="{y - 10}" width="104" height="20" rx="10"/>'
    return f'{rect}<text class="small" x="{x}" y="{y + 4}" text-anchor="middle">cast to {dtype}</text>'


def draw(policy):
    """Return the drawing as SVG: operators from top to bottom, their parameters on the left, casts on the lines."""
    net = make(policy)
    dtypes = {param.name: np.dtype(param.dtype).name for param in net.collect_params().values()}
    rows = mxmp.gluon.report(net).rows
    height = TOP + STEP * len(rows) + 34
    parts = ['<text x="420" y="24" text-anchor="middle">data, float32</text>']
    for number, row in enumerate(rows):
        y = TOP + STEP * number
        casts = {each.tensor: each.dtype for each in row.casts}
        of_data = [dtype for tensor, dtype in casts.items() if tensor not in dtypes]
        parts.append(f'<path d="M420 {y - 30} V{y}"/>')
        if of_data:
            parts.append(cast(420, y - 18, of_data[0]))
        name = NAMES.get(row.op, row.op)
        prefix = PARAMETERS.get(row.op)
        if prefix:
            own = [param for param in dtypes if param.startswith(f"net_{prefix}")]
            parts += [f'<path d="M150 {y + 19} H340"/>', box(0, y, 150, f"weights, {dtypes[own[0]]}", dtypes[own[0]])]
            if own[0] in casts:
                parts.append(cast(245, y + 19, casts[own[0]]))
        parts.append(box(340, y, 160, f"{name}, {row.precision}", row.precision))
    end = TOP + STEP * len(rows)
    parts.append(f'<path d="M420 {end - 36} V{end - 8}"/>')
    parts.append(f'<text x="420" y="{end + 10}" text-anchor="middle">output, float32</text>')
    title = f"A network under {policy}: {', '.join(f'{NAMES.get(row.op, row.op)} in {row.precision}' for row in rows)}"
    start = f'<svg viewBox="-4 0 508 {height - 20}" role="img" aria-label="{html.escape(title)}">'
    caption = f"<figcaption>{html.escape(policy)}</figcaption>"
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
