"""Estimate, on paper, how long a training step takes on a V100, a T4 and an A100 in float32, O1 and O2.

No GPU runs. Each kernel takes as long as its multiply-adds at the card's peak or its bytes at the card's bandwidth,
whichever is longer, and each launch a fixed time more. Run it from the repository: ``python -m benchmarks.roofline``.

References:
    Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model", 2009.
    NVIDIA's data sheets, named in ``CARDS``.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import symbols
from benchmarks import work
from benchmarks.common import make_parser, write
from examples.common.plot import save
from mxmp import Policy, dtypes
from mxmp.symbol.rewrite import convert_graph

POLICIES = {"float32": "O0", "O1": "O1", "O2": "O2"}
LATENCY = 5e-6  # seconds a launch; an assumption, not a figure of NVIDIA's


class Card(NamedTuple):
    """A card's peaks, as its data sheet has them: operations and bytes a second; no sparsity.

    Attributes:
        float32: Of products without tensor cores.
        tf32: Of products of float32 numbers on tensor cores; as float32 on cards that cannot, or where it is off.
        float16: Of products of float16 numbers on tensor cores.
        bandwidth: Of the memory.
        source: The data sheet.
    """

    float32: float
    tf32: float
    float16: float
    bandwidth: float
    source: str


_V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_T4 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"
_A100 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-"
    "r4-web.pdf"
)
CARDS = {  # V100 SXM2 of 16 or 32 GB, A100 SXM of 40 GB
    "V100": Card(15.7e12, 15.7e12, 125e12, 900e9, _V100),
    "T4": Card(8.1e12, 8.1e12, 65e12, 300e9, _T4),
    "A100": Card(19.5e12, 156e12, 312e12, 1555e9, _A100),
    "A100, no TF32": Card(19.5e12, 19.5e12, 312e12, 1555e9, _A100),
}


class Case(NamedTuple):
    """A network of ``symbols`` with its arguments, and the shapes of its inputs."""

    network: str
    arguments: Dict[str, Any]
    shapes: Dict[str, Tuple[int, ...]]


_TOKENS = {"data": (32, 128), "token_types": (32, 128), "valid_length": (32,), "softmax_label": (32,)}
CASES = {
    "ResNet-50, 64": Case("resnet50_v1b", {}, {"data": (64, 3, 224, 224), "softmax_label": (64,)}),
    "BERT base, 32": Case("bert_base", {}, _TOKENS),
    "LSTM, 32": Case("lstm_lm", {"num_hidden": 1024}, {"data": (32, 35), "softmax_label": (32, 35)}),
    "SSD 300, 32": Case("ssd", {"data_shape": 300}, {"data": (32, 3, 300, 300), "label": (32, 8, 5)}),
    "SSD 512, 16": Case("ssd", {"data_shape": 512}, {"data": (16, 3, 512, 512), "label": (16, 8, 5)}),
}
"""What is estimated, by its title and the size of its batch."""


def kernels(symbol: Any, shapes: Dict[str, Tuple[int, ...]], policy: str) -> List[work.Kernel]:
    """Return the kernels of one training step of a float32 symbol that is converted under a policy.

    Args:
        symbol: The network, its loss head with it.
        shapes: Shapes of its data and labels; all other variables are taken for parameters.
        policy: A policy.

    Raises:
        ValueError: If the policy is one for bfloat16, which MXNet has no kernels for on a GPU, or if a node cannot be
            counted.
    """
    parsed = Policy.parse(policy)
    if parsed.compute_dtype == dtypes.BFLOAT16:
        raise ValueError(f"policy={str(policy)!r}: MXNet has no bfloat16 kernels for GPUs; take one for float16.")
    states = frozenset(symbol.list_auxiliary_states())
    params = frozenset(symbol.list_arguments()) - set(shapes) | states
    converted = convert_graph(symbol, parsed, shapes, params=params)
    return work.step(converted, inputs=states | set(shapes), policy=parsed)


def seconds(kernel: work.Kernel, card: Card) -> float:
    """Return how long a kernel takes on a card, its launch left out."""
    peaks = {work.FLOAT32: card.float32, work.TF32: card.tf32, work.FLOAT16: card.float16}
    return max(2 * kernel.macs / peaks[kernel.peak], kernel.moved / card.bandwidth)


def estimate(found: Sequence[work.Kernel], card: Card, latency: float = LATENCY) -> float:
    """Return the seconds of a step of these kernels on a card, ``latency`` seconds for each launch among them."""
    return sum(seconds(kernel, card) + kernel.launches * latency for kernel in found)


def count(case: Case) -> Dict[str, List[work.Kernel]]:
    """Return the kernels of a step of a network in each precision."""
    symbol = symbols.get_symbol(case.network, **case.arguments)
    return {title: kernels(symbol, case.shapes, policy) for title, policy in POLICIES.items()}


COLUMNS = ("network, batch", "card", "float32, ms", "O1, ms", "O2, ms", "O1, times as fast", "O2, times as fast")


def rows(found: Mapping[str, Mapping[str, Sequence[work.Kernel]]], latency: float = LATENCY) -> List[List[str]]:
    """Return the table's rows, one for each network and card, as text: two digits, since it is an estimate."""
    result = []
    for title, counted in found.items():
        for name, card in CARDS.items():
            base, *others = (estimate(counted[policy], card, latency) for policy in POLICIES)
            times = [f"{float(f'{1e3 * value:.2g}'):g}" for value in (base, *others)]
            result.append([title, name, *times, *(f"{base / value:.1f}" for value in others)])
    return result


def totals(counted: Sequence[work.Kernel]) -> Dict[str, int]:
    """Return what a step adds up to."""
    return {
        "multiply_adds": sum(kernel.macs for kernel in counted),
        "multiply_adds_float16": sum(kernel.macs for kernel in counted if kernel.peak == work.FLOAT16),
        "bytes": sum(kernel.moved for kernel in counted),
        "launches": sum(kernel.launches for kernel in counted),
    }


def plot(found: Mapping[str, Mapping[str, Sequence[work.Kernel]]], path: str, latency: float) -> None:
    """Draw how many times as fast as float32 each network is in O1 and O2, a panel for each card."""
    figure = Figure(figsize=(9, 2 * len(CARDS)), tight_layout=True)
    for axes, (name, card) in zip(figure.subplots(len(CARDS), 1, sharex=True), CARDS.items()):
        for number, policy in enumerate(list(POLICIES)[1:]):
            speed = [estimate(c["float32"], card, latency) / estimate(c[policy], card, latency) for c in found.values()]
            axes.barh([i + 0.4 * number for i in range(len(found))], speed, height=0.4, label=policy)
        axes.axvline(1, color="black", linewidth=1)
        axes.set(title=f"{name}: an estimate, not measured")
        axes.set_yticks([i + 0.2 for i in range(len(found))], list(found))
        axes.legend()
    axes.set(xlabel="times as fast as float32")
    save(figure, path)


def main(argv: List[str] | None = None) -> int:
    """Count, print the table, write JSON and plot."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=list(CASES), default=list(CASES), metavar="NETWORK")
    parser.add_argument("--latency", type=float, default=1e6 * LATENCY, help="of a launch, in us; default: %(default)s")
    args = parser.parse_args(argv)
    found = {title: count(CASES[title]) for title in args.networks}
    latency = 1e-6 * args.latency
    table = Table(*COLUMNS, title="One training step on paper: an estimate that nobody has measured")
    for line in rows(found, latency):
        table.add_row(*line, end_section=line[1] == list(CARDS)[-1])
    result = {
        "latency": latency,
        "cards": {name: card._asdict() for name, card in CARDS.items()},
        "totals": {title: {policy: totals(c) for policy, c in counted.items()} for title, counted in found.items()},
        "seconds": {
            title: {n: {p: estimate(c, card, latency) for p, c in counted.items()} for n, card in CARDS.items()}
            for title, counted in found.items()
        },
    }
    file = write(args.out, "roofline", result)
    plot(found, str(args.out / "roofline.png"), latency)
    console = Console()
    console.print(table)
    console.print(f"Written: {os.path.relpath(file)} and roofline.png beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
