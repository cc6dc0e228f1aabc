"""Starts the columns of a case, lets them take turns, and shows what came out: a table, JSON and a plot."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxmp  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
import numpy as np
from rich.console import Console
from rich.table import Table

from mxmp.arrays import to_float32
from mxmp.devices.processor import read_processor
from mxmp.devices.speed import runs_bfloat16
from mxmp.dtypes import BFLOAT16
from mxmp.errors import MxmpError, did_you_mean, mxnet_reason
from mxmp.files import replacing
from mxmp.tune.speed import FEWEST, NOISY, scatter

from . import other_work
from .cases import GROUPS, ONNX_COLUMNS, PEER, Column, Options, Started, missing_packages
from .tables import REVISION, file_of, read_records
from .zoo import is_network

ROUNDING = 1e-4  # an error in float32 that is no more than another order of its sums
SHORTEST, MOST_RUNS = 0.02, 100  # seconds of a lap, other programs disturb shorter ones by more; and runs in it

Case = Tuple[str, str]  # a group and a case of it


@dataclass
class Result:
    """What one column of a case gave."""

    front: str
    name: str
    seconds: List[float] = field(default_factory=list)  # of each round; empty if there was nothing to time
    base: str = ""  # the column that it is compared with
    ratio: Optional[float] = None  # its time divided by the base's: the median over rounds
    error: Optional[float] = None  # the norm of its output's difference from the base's, divided by the norm of that
    values: Dict[str, Any] = field(default_factory=dict)
    missing: str = ""  # why it did not run
    noisy: bool = False  # the base's own rounds scatter so much that nothing can be told
    left_out: int = 0  # rounds in which other programs took more than `other_work.MOST` of a core


Found = Dict[Case, List[Result]]


def choose(wanted: Sequence[str], small: bool = False) -> List[Case]:
    """Return the cases of names like ``training`` and ``training/lstm``, all if there are none; or a ValueError."""
    chosen: List[Case] = []
    for text in wanted or GROUPS:
        name, _, case = text.partition("/")
        if name not in GROUPS:
            raise ValueError(f"there is no group {name!r}{did_you_mean(name, GROUPS)}.")
        group = GROUPS[name]
        if case and case not in group.cases and (name == "trainer-step" or not is_network(case)):
            raise ValueError(f"{name} has no case {case!r}{did_you_mean(case, group.cases)}.")
        chosen += [(name, each) for each in ([case] if case else [group.small] if small else group.cases)]
    return list(dict.fromkeys(chosen))


def output_error(output: Any, exact: Any) -> float:
    """Return the error of an output where float32's is finite, in float64, whose squares always fit."""
    # float32's squares overflow from 1.8e19 on, and vanish below 1e-23.
    is_finite = np.isfinite(exact)
    right, value = (np.where(is_finite, array, 0).astype(np.float64).ravel() for array in (exact, output))
    if not np.isfinite(value).all():
        return math.inf
    difference, size = float(np.linalg.norm(value - right)), float(np.linalg.norm(right))
    return difference / size if size else (0.0 if difference == 0 else math.inf)


class Timer:
    """Times a column that is warm: each lap has as many runs as make it long enough."""

    def __init__(self, started: Started, cpu_time: bool) -> None:
        self._run, self._prepare = started.run or (lambda: None), started.prepare
        self._clock = time.process_time if cpu_time else time.perf_counter
        self._runs, output = 1, None
        if started.run is not None:
            self._prepare()
            output = self._run()
            seconds = [self.lap() for _ in range(started.warmup)][-1]
            self._runs = max(1, min(MOST_RUNS, round(SHORTEST / max(seconds, 1e-6))))
        output = to_float32(output).asnumpy() if isinstance(output, mx.nd.NDArray) else output
        # Whether there is anything to time, the output of the first run if it is an array, and further results.
        self.facts = started.run is not None, output if isinstance(output, np.ndarray) else None, dict(started.values)

    def lap(self) -> float:
        """Return the seconds of one run, what it leaves to MXNet's engine included."""
        total = 0.0
        for _ in range(self._runs):
            self._prepare()
            mx.nd.waitall()
            start = self._clock()
            self._run()
            mx.nd.waitall()
            total += self._clock() - start
        return total / self._runs


class Remote:
    """A `Timer` in a process of its own."""

    def __init__(self, case: Case, number: int, options: Options) -> None:
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.process_id = self._process.submit(os.getpid).result()
        self.facts = self._process.submit(_start, case, number, options).result()

    def lap(self) -> float:
        """Return the seconds of one run there."""
        return self._process.submit(_lap).result()

    def close(self) -> None:
        """End the process."""
        self._process.shutdown()


_TIMER: List[Timer] = []  # of such a process


def _start(case: Case, number: int, options: Options) -> Any:
    _TIMER.append(Timer(GROUPS[case[0]].columns(case[1], options)[number].start(), options.cpu_time))
    return _TIMER[0].facts


def _lap() -> float:
    return _TIMER[0].lap()


def measure(case: Case, options: Options) -> List[Result]:
    """Return the result of each column of a case; a column that does not run is a line and no end."""
    group, begin = GROUPS[case[0]], time.perf_counter()
    apart, columns = group.apart and not options.small, group.columns(case[1], options)
    results = [Result(column.front, column.name) for column in columns]
    timers: Dict[Tuple[str, str], Any] = {}
    for number, (column, result) in enumerate(zip(columns, results)):
        if column.dtype == BFLOAT16 and not runs_bfloat16():
            result.missing = "MXNet runs no bfloat16 on this processor, which lacks AVX-512"
        elif group.apart and column.name == PEER and not apart:
            result.missing = "it changes MXNet for the whole process"
        else:
            try:
                timer: Any = Remote(case, number, options) if apart else Timer(column.start(), options.cpu_time)
                timers[column.front, column.name] = timer
            except (mx.MXNetError, MxmpError, RuntimeError) as e:
                result.missing = f"fails: {mxnet_reason(e) if isinstance(e, mx.MXNetError) else e}"
    laps: Any = {key: timer.lap for key, timer in timers.items() if timer.facts[0]}
    processes = [timer.process_id for timer in timers.values()] if apart else []
    times: Dict[Any, List[float]] = {key: [] for key in laps}
    count, left_out, until = 0, 0, begin + (options.seconds or group.seconds)
    try:
        # On a busy machine as many are left out at most as are wanted.
        while laps and count < options.rounds and left_out < options.rounds:
            if count >= FEWEST and time.perf_counter() >= until:
                break
            others = other_work.OtherWork(processes)
            seconds = {key: laps[key]() for key in list(laps)[:: -1 if count % 2 else 1]}
            if options.leave_out and others.cores() > other_work.MOST:
                left_out += 1
                continue
            count += 1
            for key in laps:
                times[key].append(seconds[key])
    finally:
        for timer in timers.values() if apart else ():
            timer.close()
    _compare(columns, results, {key: timer.facts for key, timer in timers.items()}, times)
    for result in results:
        result.left_out = left_out
    return results


def _compare(columns: Sequence[Column], results: Sequence[Result], facts: Any, times: Dict[Any, List[float]]) -> None:
    """Complete results by the times of rounds: each column beside the fastest base of its front."""
    for result in results:
        key = result.front, result.name
        if key in facts:
            _, output, result.values = facts[key]
            result.seconds = times.get(key, [])
            bases = [(each.front, each.name) for each in columns if each.is_base and each.front == result.front]
            base = min((each for each in bases if times.get(each)), key=lambda each: median(times[each]), default=None)
            if base is not None:
                result.base, result.noisy = base[1], scatter(times[base]) > NOISY
                ratios = [seconds / other for seconds, other in zip(result.seconds, times[base])]
                result.ratio = median(ratios) if ratios else None
                if output is not None and facts[base][1] is not None and key != base:
                    result.error = output_error(output, facts[base][1])


def tables(found: Found) -> List[Table]:
    """Return a table for each front of each group."""
    made = []
    for group, front, rows in _panels(found):
        names, is_speed = _names(rows), GROUPS[group].is_speed
        says = "times as fast as the base (error)" if is_speed else "times as long as the base"
        title = ", ".join(filter(None, (group, front)))
        table = Table("case", *names, title=title, caption=f"ms of the base, the others {says}")
        for case, row in rows.items():
            noise = " (noisy)" if any(each.noisy for each in row.values()) else ""
            table.add_row(case + noise, *(_cell(row.get(name), is_speed) for name in names))
        if len(rows) > 1:
            table.add_section()
            shown = ([_shown(row.get(name), is_speed) for row in rows.values()] for name in names)
            table.add_row("geometric mean", *map(_mean, shown))
        made.append(table)
    return made


def plot(found: Found, path: str) -> None:
    """Draw each column beside its base, a panel for each front, bars for each case."""
    from matplotlib.figure import Figure

    panels = list(_panels(found))
    figure = Figure(figsize=(11, 3.2 * len(panels)), tight_layout=True)
    for axes, (group, front, rows) in zip(np.atleast_1d(figure.subplots(len(panels), 1)), panels):
        names, is_speed = _names(rows), GROUPS[group].is_speed
        for number, name in enumerate(names):
            heights, width = [_shown(row.get(name), is_speed) or 0.0 for row in rows.values()], 0.8 / len(names)
            axes.bar([place + width * number for place in range(len(rows))], heights, width, label=name)
        axes.axhline(1, color="black", linewidth=1)
        axes.set_xticks([place + 0.4 for place in range(len(rows))], list(rows))
        axes.set(ylabel="times as fast" if is_speed else "times as long", title=f"{group} {front}")
        axes.legend(fontsize="small", ncols=2)
    with replacing(path) as (name,):
        figure.savefig(name, format=os.path.splitext(path)[1][1:] or "png")


def missing_lines(found: Found) -> List[str]:
    """Return a line for each reason why columns did not run somewhere, and one for the rounds that were left out."""
    lines: Dict[str, Dict[str, None]] = {}
    for (group, case), results in found.items():
        for each in results:
            if each.missing:
                lines.setdefault(f"{group}, {each.name}: {each.missing}", {})[case] = None
    busy = {case: results[0].left_out for case, results in found.items() if results and results[0].left_out}
    counts = ", ".join(f"{'/'.join(case)} {count}" for case, count in busy.items())
    said = f"rounds left out, in which other programs took more than {other_work.MOST} of a core: {counts}"
    return [*(f"{line} ({', '.join(cases)})" for line, cases in lines.items()), *([said] if busy else [])]


def _panels(found: Found) -> Any:
    """Yield each group and front with its rows: by case, results by column."""
    for group, front in dict.fromkeys((case[0], each.front) for case, results in found.items() for each in results):
        chosen = {case: results for (name, case), results in found.items() if name == group}
        rows = {case: {r.name: r for r in rs if r.front == front} for case, rs in chosen.items()}
        if _names(rows):
            yield group, front, rows


def _names(rows: Dict[str, Dict[str, Result]]) -> List[str]:
    """Return the columns that have anything to show."""
    results = [result for row in rows.values() for result in row.values() if result.seconds or result.values]
    return list(dict.fromkeys(result.name for result in results))


def _shown(result: Optional[Result], is_speed: bool) -> Optional[float]:
    ratio = result.ratio if result is not None else None
    return 1 / ratio if ratio and is_speed else ratio


def _cell(result: Optional[Result], is_speed: bool) -> str:
    if result is None or not (result.seconds or result.values):
        return "-"
    parts, ratio = [f"{name} {value}" for name, value in result.values.items()], _shown(result, is_speed)
    if result.seconds:
        error = f" ({100 * result.error:.2g} %)" if result.error and result.error > ROUNDING else ""
        is_base = ratio is None or result.base == result.name
        parts = [f"{1e3 * median(result.seconds):.1f} ms" if is_base else f"{ratio:.2f}{error}", *parts]
    return ", ".join(parts)


def _mean(values: Sequence[Optional[float]]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or set(known) <= {1.0}:  # of a base
        return "-"
    return f"{math.exp(sum(map(math.log, known)) / len(known)):.2f}"


def machine() -> Dict[str, Any]:
    """Return what results depend on beyond the options."""
    processor = read_processor()
    facts: Dict[str, Any] = {"processor": processor.name, "kind": processor.kind.name}
    facts.update(AMX="on" if processor.amx.on else "off", threads=os.environ.get("OMP_NUM_THREADS", "all"))
    facts.update(cores=str(os.cpu_count()), date=time.strftime("%Y-%m-%d"), revision=REVISION, commit=_commit())
    return {**facts, **{each.__name__: each.__version__ for each in (mxmp, mx, np)}}


def _commit() -> str:
    """Return the commit that is checked out, with a plus sign if files differ from it."""
    command, root = ["git", "describe", "--always", "--dirty=+"], Path(__file__).parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "an unknown commit"


def run(
    cases: Sequence[Case], options: Options, json_file: str = "", plot_file: str = "", folder: str = ""
) -> Found:
    """Measure cases one after the other, with progress on stderr, and show them; JSON is written after each.

    ``folder`` is that of the files for `benchmarks.tables`, one for each kind of processor.
    """
    found: Found = {}
    facts, stored = machine(), []
    if folder:
        os.makedirs(folder, exist_ok=True)
        json_file = os.path.join(folder, file_of(facts["kind"]))
        before = [each for each in read_records(Path(folder)) if each["machine"]["kind"] == facts["kind"]]
        stored = [each for record in before for each in record["cases"] if (each["group"], each["case"]) not in cases]
    expected, begin = [options.seconds or GROUPS[group].seconds for group, _ in cases], time.perf_counter()
    for title in ONNX_COLUMNS if any(group == "inference" for group, _ in cases) else ():
        if missing_packages(title):
            print(f"no column {title}: pip install {' '.join(missing_packages(title))}", file=sys.stderr)
    try:
        for number, case in enumerate(cases):
            pace = (time.perf_counter() - begin) / sum(expected[:number]) if number else 1.0
            left = f"about {math.ceil(sum(expected[number:]) * pace / 60)} min left"
            print(f"[{number + 1}/{len(cases)}] {'/'.join(case)}, {left}", file=sys.stderr, flush=True)
            found[case] = measure(case, options)
            if json_file:
                when = {"date": facts["date"], "commit": facts["commit"]}
                listed = [
                    {"group": group, "case": name, **when, "columns": list(map(asdict, results))}
                    for (group, name), results in found.items()
                ]
                result = {"machine": facts, "options": asdict(options), "cases": [*stored, *listed]}
                with replacing(json_file) as (name,):
                    Path(name).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    except KeyboardInterrupt:
        print("Interrupted: what follows had been measured.", file=sys.stderr)
    console = Console() if sys.stdout.isatty() else Console(width=150)
    for table in tables(found):
        console.print(table)
    for line in (", ".join(f"{name} {value}" for name, value in facts.items()), *missing_lines(found)):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if plot_file and list(_panels(found)):
        plot(found, plot_file)
    return found
