"""Shows what a training step asks of a GPU, in float32 and in mixed precision side by side; no GPU is needed.

``python -m tools.gpu_record.step mine.py`` records the network of a file with a function::

    def network():
        net = mx.gluon.model_zoo.vision.resnet50_v1()
        inputs, labels = [mx.nd.ones((32, 3, 224, 224))], [mx.nd.zeros((32,))]
        return net, inputs, labels, mx.gluon.loss.SoftmaxCrossEntropyLoss()

The loss is called with the net's outputs and the labels. Each mode runs in a process of its own, with MXNet's memory
pool off, so that memory is what is in use.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple
from typing import Counter as CounterOf

from rich.console import Console
from rich.table import Table

from mxmp.errors import MxmpError

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


def record_step(file: str, mode: str, recorder: Path, optimizer: str = "sgd") -> RecordedStep:
    """Return what a training step of a file's network asks of a GPU.

    ``recorder`` is the folder of `build`. A StepError says why the network does not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tools.gpu_record.recorded_step", file, mode, optimizer],
            env=environment(recorder, record, MXNET_GPU_MEM_POOL_TYPE="Unpooled"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = [f"{file} ended with status {done.returncode} in {mode}", *done.stdout.strip().splitlines()]
            raise StepError(sorted(lines, key=lambda line: line.startswith("mxmp: "))[-1].replace("mxmp: ", "", 1))
        calls = read(record)
    end = next(number for number, call in enumerate(calls) if call.name == "mark" and call["name"] == END)
    found, in_use = sections(calls), summarize(calls[:end])
    summaries = {name: summarize(found[name]) for name in SECTIONS}
    return RecordedStep(summaries, in_use.allocated_bytes - in_use.freed_bytes)


def table(steps: Dict[str, RecordedStep]) -> Table:
    """Return a table with a column for each mode."""
    shown = Table("", *steps, title="One training step, as asked of a GPU")
    totals = [step.total for step in steps.values()]
    products = [_products(total) for total in totals]
    rows = {"kernels launched": [total.launches for total in totals]}
    rows.update({f"  in {name}": [step.sections[name].launches for step in steps.values()] for name in SECTIONS})
    rows.update({title: [value(total) for total in totals] for title, value in _ROWS})
    rows["bytes in use between steps"] = [step.bytes_in_use for step in steps.values()]
    kinds = sorted({kind for counts in products for kind in counts})
    rows.update({kind: [counts[kind] for counts in products] for kind in kinds})
    for title, numbers in rows.items():
        shown.add_row(title, *(f"{number:,}" for number in numbers))
    return shown


_ROWS: List[Tuple[str, Callable[[Summary], int]]] = [
    ("  of them fused at run time", lambda total: total.fused),
    ("  of them casts", lambda total: sum(total.casts.values())),
    ("bytes that casts read and write", lambda total: total.cast_bytes),
    ("casts inside fused kernels", lambda total: sum(total.fused_casts.values())),
    ("library calls", lambda total: total.library_calls),
    ("waits for a stream", lambda total: total.synchronizations),
    ("reads by the host", lambda total: total.host_reads),
    ("  their bytes", lambda total: total.host_read_bytes),
]


def _products(summary: Summary) -> CounterOf[str]:
    """Return how many products, convolutions and recurrent networks there are, by dtype, dtype of the sums and math."""
    found: CounterOf[str] = Counter()
    for name in ("matrix_products", "convolutions", "rnns"):
        what = "recurrent" if name == "rnns" else "products"
        for call, count in getattr(summary, name).items():
            found[f"{call.dtype} {what}, {call.compute} sums, {call.math}"] += count
    return found


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Record a step in each mode, and print what they amount to."""
    how = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser("python -m tools.gpu_record.step", description=__doc__, formatter_class=how)
    parser.add_argument("file", help="a Python file with a function network()")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES[:3], help=f"default: {' '.join(MODES[:3])}")
    parser.add_argument("--optimizer", default="sgd", help="MXNet's name of it; default: sgd, with momentum")
    parser.add_argument("--recorder", type=Path, default=Path(sys.prefix) / "recorder", help="build wrote it")
    options = parser.parse_args(arguments)
    steps: Dict[str, RecordedStep] = {}
    try:
        with Console(stderr=True, markup=False).status("") as status:
            for mode in options.modes:
                status.update(mode)
                steps[mode] = record_step(options.file, mode, options.recorder, options.optimizer)
    except (MxmpError, OSError) as error:
        raise SystemExit(f"mxmp: {error}") from error
    Console(highlight=False, markup=False).print(table(steps))


if __name__ == "__main__":
    main()
