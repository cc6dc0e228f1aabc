"""Shows what a training step asks of a GPU, in float32 and in mixed precision side by side; no GPU is needed.

``python -m tools.gpu_record.step resnet50_v1b --shape data=32,3,224,224`` records a network of `symbols`;
``python -m tools.gpu_record.step mine.py`` that of a file with a function::

    def network():
        net = mx.gluon.model_zoo.vision.resnet50_v1()
        inputs, labels = [mx.nd.ones((32, 3, 224, 224))], [mx.nd.zeros((32,))]
        return net, inputs, labels, mx.gluon.loss.SoftmaxCrossEntropyLoss()

The loss is called with the net's outputs and the labels. Each mode runs in a process of its own, with MXNet's memory
pool off, so that memory is what is in use.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple
from typing import Counter as CounterOf

from rich.console import Console
from rich.table import Table

from mxmp.errors import MxmpError

from .build import LIBRARY, SOURCES, build, find_libmxnet
from .process import environment
from .read import read, sections
from .summary import Summary, summarize

MODES = ("float32", "O1", "O2", "O3")
SECTIONS = ("forward", "backward", "update")
END = "end"  # the mark behind a step


class StepError(MxmpError, RuntimeError):
    """A network could not be recorded; the message is that of its process."""


@dataclass(frozen=True)
class RecordedStep:
    """One training step in one mode."""

    sections: Dict[str, Summary]  # forward, backward and update
    bytes_in_use: int  # memory that stays in use from step to step, without cuDNN's workspaces

    @property
    def total(self) -> Summary:
        """The whole step."""
        return sum(self.sections.values(), Summary())

    def as_dict(self) -> Dict[str, Any]:
        """Return the step as JSON has it."""
        found = {name: summary.as_dict() for name, summary in self.sections.items()}
        return {**found, "bytes_in_use": self.bytes_in_use}


def record_step(
    network: str,
    mode: str,
    recorder: Path,
    shapes: Optional[Dict[str, Tuple[int, ...]]] = None,
    optimizer: str = "sgd",
    **settings: Any,
) -> RecordedStep:
    """Return what a training step of a network, a name of `symbols` or a Python file, asks of a GPU.

    ``recorder`` is the folder of `build`, ``shapes`` those of a network of `symbols`; settings are those of
    `environment`. A StepError says why the network does not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record"
        arguments = [network, mode, json.dumps(shapes or {}), optimizer]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tools.gpu_record.recorded_step", *arguments],
            env=environment(recorder, record, MXNET_GPU_MEM_POOL_TYPE="Unpooled", **settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StepError(_last_words(done.stdout) or f"{network} ended with status {done.returncode} in {mode}")
        calls = read(record)
    end = next(number for number, call in enumerate(calls) if call.name == "mark" and call["name"] == END)
    found, in_use = sections(calls), summarize(calls[:end])
    summaries = {name: summarize(found[name]) for name in SECTIONS}
    return RecordedStep(summaries, in_use.allocated_bytes - in_use.freed_bytes)


def table(steps: Dict[str, RecordedStep]) -> Table:
    """Return a table with a column for each mode."""
    shown = Table(title="One training step, as asked of a GPU")
    shown.add_column("")
    for mode in steps:
        shown.add_column(mode, justify="right")
    for title, value in _ROWS:
        shown.add_row(title, *(value(step) for step in steps.values()))
    found = [_products(step.total) for step in steps.values()]
    for kind in sorted({kind for counts in found for kind in counts}):
        shown.add_row(kind, *(f"{counts[kind]:,}" for counts in found))
    return shown


def _last_words(output: str) -> str:
    """Return what a process that failed says of it: its own one line, or the end of what it wrote."""
    lines = [line for line in output.splitlines() if line.strip()]
    own = next((line for line in lines if line.startswith("mxmp: ")), None)
    return own[len("mxmp: ") :] if own else "\n".join(lines[-5:])


def _number(value: Callable[[Summary], int]) -> Callable[[RecordedStep], str]:
    return lambda step: f"{value(step.total):,}"


_ROWS: List[Tuple[str, Callable[[RecordedStep], str]]] = [
    ("kernels launched", _number(lambda summary: summary.launches)),
    *((f"  in {name}", lambda step, name=name: f"{step.sections[name].launches:,}") for name in SECTIONS),
    ("  of them fused at run time", _number(lambda summary: summary.fused)),
    ("  of them casts", _number(lambda summary: sum(summary.casts.values()))),
    ("casts' reads and writes", lambda step: f"{step.total.cast_bytes / 1e6:,.1f} MB"),
    ("casts inside fused kernels", _number(lambda summary: sum(summary.fused_casts.values()))),
    ("library calls", _number(lambda summary: summary.library_calls)),
    ("waits for a stream", _number(lambda summary: summary.synchronizations)),
    ("reads by the host", _number(lambda summary: summary.host_reads)),
    ("  their bytes", _number(lambda summary: summary.host_read_bytes)),
    ("memory in use between steps", lambda step: f"{step.bytes_in_use / 1e6:,.1f} MB"),
]


def _products(summary: Summary) -> CounterOf[str]:
    """Return how many products, convolutions and recurrent networks there are, by dtype, dtype of the sums and math."""
    found: CounterOf[str] = Counter()
    for name in ("matrix_products", "convolutions", "rnns"):
        what = "recurrent" if name == "rnns" else "products"
        for call, count in getattr(summary, name).items():
            found[f"{call.dtype} {what}, {call.compute} sums, {call.math}"] += count
    return found


def _shape(text: str) -> Tuple[str, Tuple[int, ...]]:
    name, _, sizes = text.partition("=")
    try:
        shape = tuple(int(size) for size in sizes.split(","))
    except ValueError:
        shape = ()
    if not name or not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=SIZE,SIZE,..., like data=32,3,224,224")
    return name, shape


def _modes(text: str) -> Tuple[str, ...]:
    modes = tuple(text.split(","))
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown mode {unknown[0]!r}; expected some of {','.join(MODES)}")
    return modes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_record.step", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("network", help="a name of symbols.NETWORKS, or a Python file with a function network()")
    add("--shape", action="append", type=_shape, default=[], help="NAME=SIZE,SIZE,... of an input of such a network")
    add("--modes", type=_modes, default=MODES[:3], help=f"some of {','.join(MODES)}; default: {','.join(MODES[:3])}")
    add("--optimizer", default="sgd", help="MXNet's name of it; default: sgd, with momentum")
    add("--recorder", type=Path, default=Path(sys.prefix) / "recorder", help="where the recorder is, or is to be built")
    add("--json", action="store_true", help="print all that is known, for programs")
    return parser


def _built(recorder: Path) -> Path:
    """Return the folder of the recorder, which is built unless it is newer than its sources."""
    library = recorder / LIBRARY
    sources = [path for path in SOURCES.iterdir() if path.suffix in (".c", ".h")]
    if not library.exists() or library.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        build(find_libmxnet(), recorder)
    return recorder


def _record_modes(options: argparse.Namespace) -> Dict[str, RecordedStep]:
    steps: Dict[str, RecordedStep] = {}
    with Console(stderr=True, markup=False).status("recorder") as status:
        recorder = _built(options.recorder)
        for mode in options.modes:
            status.update(mode)
            steps[mode] = record_step(options.network, mode, recorder, dict(options.shape), options.optimizer)
    return steps


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Record a step in each mode, and print what they amount to."""
    options = _parser().parse_args(arguments)
    try:
        steps = _record_modes(options)
    except (MxmpError, OSError) as error:
        raise SystemExit(f"mxmp: {error}") from error
    if options.json:
        print(json.dumps({mode: step.as_dict() for mode, step in steps.items()}, indent=2))
    else:
        Console(highlight=False, markup=False).print(table(steps))


if __name__ == "__main__":
    main()
