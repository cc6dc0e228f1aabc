"""All that there is of a run on one page: first what matters, then what explains it."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence, Tuple

from ..numbers import figure, finite, to_float
from ..page import Section, cards, notes
from .compare import compare_sections
from .ledger import gradients_section, ledger_cards
from .report import Pairs, network_section, operators_section, report_cards, report_warnings
from .steps import scales_of, steps_cards, steps_section


def run_sections(
    report: Optional[Mapping[str, Any]] = None,
    steps: Optional[Sequence[Mapping[str, Any]]] = None,
    ledger: Optional[Mapping[str, Any]] = None,
    compare: Optional[Mapping[str, Any]] = None,
    warnings: Sequence[str] = (),
    legend: Pairs = (),
) -> List[Section]:
    """Return the sections of a run, of which any part may be missing.

    Args:
        report: What ``Report.to_dict`` returns.
        steps: A dict for each step, as `steps_sections` takes them.
        ledger: A ledger's ``to_dict``.
        compare: A comparison's ``to_dict``.
        warnings: Sentences on what may harm training or speed.
        legend: Words in the report's reasons, each with its meaning.
    """
    found = [_summary(report, steps, ledger, compare, warnings)]
    if report is not None and report["rows"]:
        found.append(network_section(report))
    if steps:
        found.append(steps_section(steps))
    if ledger is not None:
        found.append(gradients_section(ledger))
    if compare is not None:
        found += compare_sections(compare, [row["name"] for row in report["rows"]] if report is not None else ())
    if report is not None:
        found.append(operators_section(report, legend))
    return found


def run_lead(
    policy: str, steps: Optional[Sequence[Mapping[str, Any]]] = None, ledger: Optional[Mapping[str, Any]] = None
) -> str:
    """Return the line under a run's title: its policy, with the loss scale that the steps had in place of the policy's.

    Args:
        policy: As text; '' if it is not known.
        steps: A dict for each step, as `steps_sections` takes them.
        ledger: A ledger's ``to_dict``.
    """
    last = finite(to_float(((ledger or {}).get("scale") or {}).get("last")))
    scales = scales_of(steps or ()) or ([] if last is None else [last])
    if not scales:
        return policy
    low, high = min(scales), max(scales)
    fields = [each for each in policy.split(",") if each and not each.startswith("loss_scale=")]
    return ",".join([*fields, f"loss scale {figure(low)}" + (f" to {figure(high)}" if low < high else "")])


def _summary(
    report: Optional[Mapping[str, Any]],
    steps: Optional[Sequence[Mapping[str, Any]]],
    ledger: Optional[Mapping[str, Any]],
    compare: Optional[Mapping[str, Any]],
    warnings: Sequence[str],
) -> Section:
    """Return figures, warnings and advice of all parts."""
    figures: List[Tuple[str, str, str]] = []
    if report is not None:
        figures += report_cards(report)
        warnings = report_warnings(report, warnings)
    if steps:
        figures += steps_cards(steps)
    elif ledger is not None:
        figures += ledger_cards(ledger)
    for output in (compare or {}).get("outputs") or ():
        figures.append((f"error of {output['name']}", figure(output["error"]), "relative to float32"))
    advice = (ledger or {}).get("advice") or ()
    return Section("Summary", (cards(figures), notes("Warning", warnings), notes("Advice", advice)))
