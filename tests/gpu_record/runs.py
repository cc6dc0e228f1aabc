"""Runs the programs of this folder under the recorder, each combination once, and keeps what was recorded.

Steps run in processes of their own: contrib.amp patches MXNet, and a process that crashes fails one test. All workers
of a test run share a folder, so that none repeats what another has run.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Tuple, Union

from tools.gpu_record.build import build, find_libmxnet
from tools.gpu_record.process import environment
from tools.gpu_record.read import Call, read, sections
from tools.gpu_record.summary import Summary, peak_bytes, summarize

ROOT = Path(__file__).parents[2]
PHASES = ("forward", "scale", "backward", "update")
TIMEOUT = 120  # seconds


class Run(NamedTuple):
    """What a process is asked to run.

    Attributes:
        program: A module of `programs`.
        arguments: Its arguments, but for the last: the file for its facts.
        gpus: How many GPUs it sees.
        settings: Pairs of further environment variables and their values.
    """

    program: str
    arguments: Tuple[str, ...]
    gpus: int = 1
    settings: Tuple[Tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        """A name for its files, without an ending."""
        return f"{self.program}-{hashlib.sha256(repr(self).encode()).hexdigest()[:16]}"


class Step(NamedTuple):
    """A training step.

    Attributes:
        front: 'gluon' or 'module'.
        network: What is trained.
        mode: In which precision, and by whose means.
        optimizer: By what.
        together: The modes that share its process, itself one of them.
    """

    front: str
    network: str
    mode: str
    optimizer: str = "sgd"
    together: Tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join((self.front, self.network, self.mode, self.optimizer))

    @property
    def run(self) -> Run:
        """The process that runs it."""
        modes = ",".join(self.together or (self.mode,))
        return Run(f"{self.front}_step", (self.network, modes, self.optimizer))

    def in_mode(self, mode: str) -> Step:
        """Return the same step in another mode."""
        return self._replace(mode=mode, together=self.together if mode in self.together else ())


@dataclass(frozen=True)
class Record:
    """What a process recorded.

    Attributes:
        sections: A summary of each marked section, such as 'taken forward'; of a step 'taken' and 'skipped' are its
            sections together. With several GPUs each section is there for each of them too: 'taken forward on 1'.
        facts: What the program wrote besides: whether steps were taken, the casts that a report counts.
        longest_float16_sum: Terms of the longest sum of a matrix product that accumulates in float16, of the process.
        peaks: By section the most bytes that were allocated and not freed, beyond those at its beginning.
    """

    sections: Dict[str, Summary]
    facts: Dict[str, Any]
    longest_float16_sum: int = 0
    peaks: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, section: str) -> Summary:
        return self.sections[section]


class RunError(Exception):
    """A program that failed, with what it wrote."""


class Recorder:
    """Runs programs and remembers their records, in memory and in a folder.

    Args:
        folder: Shared by all workers of a test run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @functools.lru_cache(maxsize=None)  # noqa: B019  # one lives as long as the process
    def record(self, run: Run) -> Record:
        """Return the record of a program, which is run unless it was.

        Raises:
            RunError: If the program failed, with the end of what it wrote.
        """
        path = self.folder / f"{run.file}.pickle"
        with self._locked(run.file):
            if not path.exists():
                path.write_bytes(pickle.dumps(self._run(run)))
        found = pickle.loads(path.read_bytes())
        if isinstance(found, str):
            raise RunError(found)
        assert isinstance(found, Record)
        return found

    def step(self, step: Step) -> Record:
        """Return the record of a training step, with the sections of its mode alone; raises as `record`."""
        found = self.record(step.run)
        if "error" in found.facts[step.mode]:
            raise RunError(found.facts[step.mode]["error"])
        begin = f"{step.mode}/"
        own = {name[len(begin) :]: summary for name, summary in found.sections.items() if name.startswith(begin)}
        for kind in ("taken", "skipped"):
            own[kind] = sum((own[f"{kind} {phase}"] for phase in PHASES if f"{kind} {phase}" in own), Summary())
        return Record(own, found.facts[step.mode], found.longest_float16_sum)

    def _run(self, run: Run) -> Union[Record, str]:
        """Return a record, or the error that a program ended with."""
        record, facts = self.folder / f"{run.file}.jsonl", self.folder / f"{run.file}.json"
        record.unlink(missing_ok=True)  # of a test run that was stopped: it would be appended to
        program = f"tests.gpu_record.programs.{run.program}"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", program, *run.arguments, str(facts)],
            cwd=ROOT,
            env=environment(self.library, record, run.gpus, OMP_NUM_THREADS=1, **dict(run.settings)),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT,
        )
        if done.returncode:
            return f"{run.program} {' '.join(run.arguments)} ended with {done.returncode}:\n{done.stdout[-3000:]}"
        found = make_record(read(record), json.loads(facts.read_text()), run.gpus)
        record.unlink()  # megabytes
        return found

    @functools.cached_property
    def library(self) -> Path:
        """The folder with the recorder, built for the MXNet that is installed."""
        folder = self.folder / "recorder"
        with self._locked("build"):
            if not folder.exists():
                build(find_libmxnet(), folder)
        return folder

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Keep other workers from running the same."""
        with open(self.folder / f"{name}.lock", "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def make_record(calls: List[Call], facts: Dict[str, Any], gpus: int) -> Record:
    """Return what calls amount to, by section and with several GPUs for each of them too."""
    parts = sections(calls)
    for gpu in range(gpus if gpus > 1 else 0):
        own = [call for call in calls if call.device == gpu or call.name == "mark"]
        parts.update({f"{name} on {gpu}": part for name, part in sections(own).items()})
    longest = max((call["k"] for call in calls if call.fields.get("compute") == "float16"), default=0)
    summaries = {name: summarize(part) for name, part in parts.items()}
    return Record(summaries, facts, longest, {name: peak_bytes(part) for name, part in parts.items()})
