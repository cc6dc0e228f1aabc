"""A conversion's report: figures, the network, and a table of its operators."""

from __future__ import annotations

from collections import Counter
from typing import Any, List, Mapping, Sequence, Tuple

from ..network import Operator, network
from ..numbers import figure, size
from ..page import Section, cards, facts, notes
from ..tables import PRECISION, Column, table

Pairs = Sequence[Tuple[str, str]]

_COLUMNS = (
    Column("node"),
    Column("operator"),
    Column("precision", PRECISION, "What it computes in"),
    Column("reason", help="Why; the words are explained below"),
    Column("casts", help="What mxmp casts for its inputs, or behind it for the network's outputs"),
)

_GONE = ("folded", "dropped")


def report_sections(
    report: Mapping[str, Any],
    warnings: Sequence[str] = (),
    legend: Pairs = (),
    picture: bool = True,
) -> List[Section]:
    """Return the sections of a report.

    Args:
        report: What ``Report.to_dict`` returns.
        warnings: Sentences on what may harm training or speed.
        legend: Words in the reasons, each with its meaning.
        picture: Whether the network is drawn.
    """
    summary = Section("Summary", (cards(report_cards(report)), notes("Warning", report_warnings(report, warnings))))
    drawn = [network_section(report)] if picture and report["rows"] else []
    return [summary, *drawn, operators_section(report, legend)]


def report_warnings(report: Mapping[str, Any], warnings: Sequence[str]) -> List[str]:
    """Return what is to be noticed about a report, operators that no rule is known for included."""
    without = report["without_rule"]
    return [*warnings, *([f"No rule for {', '.join(without)}: left as they were."] if without else [])]


def report_cards(report: Mapping[str, Any]) -> List[Tuple[str, str, str]]:
    """Return the figures of a report that matter most."""
    rows = report["rows"]
    count = Counter(row["precision"] for row in rows)
    computed = sum(number for precision, number in count.items() if precision not in _GONE)
    found = [
        (
            f"operators in {precision}" if precision.startswith(("float", "bfloat")) else f"operators {precision}",
            figure(number),
            f"of {computed:,}" if precision not in _GONE else "",
        )
        for precision, number in sorted(count.items(), key=lambda each: (each[0].endswith("32"), each[0]))
    ]
    moved = f", {size(report['cast_bytes'])} moved" if report["cast_bytes"] is not None else ""
    found.append(("casts", figure(report["casts"]), f"{report['activation_casts']:,} of activations{moved}"))
    for what, name in (("activations", "activation_bytes"), ("parameters", "param_bytes")):
        sizes = report.get(name)
        if sizes:
            found.append((what, size(sizes[1]), f"{size(sizes[0])} before"))
    return found


def network_section(report: Mapping[str, Any]) -> Section:
    """Return the picture of a report's network."""
    rows = [row for row in report["rows"] if row["precision"] not in _GONE]
    operators = [
        Operator(row["name"], row["op"], row["precision"], row["reason"], row["casts"], row.get("inputs", ()))
        for row in rows
    ]
    lead = "Each operator is a cell in the colour of its precision."
    return Section("Network", (network(operators),), lead)


def operators_section(report: Mapping[str, Any], legend: Pairs = ()) -> Section:
    """Return the table of a report's operators, with a legend of the reasons."""
    names = "name", "op", "precision", "reason"
    rows = [(*(row[name] for name in names), ", ".join(row["casts"])) for row in report["rows"]]
    body = table(_COLUMNS, rows, "Operators, in the order in which they run", "operators")
    return Section("Operators", (body, *([facts(legend)] if legend else [])))


def policy_sections(fields: Pairs) -> List[Section]:
    """Return the section of a policy, given its fields with their values, as text."""
    return [Section("Policy", (facts(fields),))]
