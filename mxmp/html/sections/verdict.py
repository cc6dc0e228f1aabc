"""Why a step was not finite: the verdict, and the operator that inf or NaN comes from with the ranges around it."""

from __future__ import annotations

from typing import Any, List, Mapping, Tuple

from ..numbers import figure
from ..page import Section, facts, notes
from ..tables import NUMBER, Column, table

_COLUMNS = (
    Column("tensor"),
    Column("what it is"),
    Column("elements", NUMBER),
    Column("NaN", NUMBER),
    Column("inf", NUMBER),
    Column("smallest", NUMBER, "The smallest finite value"),
    Column("largest", NUMBER, "The largest finite value"),
)


def verdict_sections(verdict: Mapping[str, Any]) -> List[Section]:
    """Return the sections of a verdict, from what its ``to_dict`` returns."""
    pairs = [("verdict", str(verdict["kind"])), ("loss scale", figure(verdict["scale"]))]
    if verdict.get("finite_scale") is not None:
        pairs.append(("finite at a loss scale of", figure(verdict["finite_scale"])))
    blocks = facts(pairs), notes("Verdict", [str(verdict["text"])])
    node = verdict.get("node")
    return [Section("Why the step is not finite", blocks), *(nonfinite_sections(node) if node else ())]


def nonfinite_sections(node: Mapping[str, Any]) -> List[Section]:
    """Return the sections of where inf or NaN comes up first, from what its ``to_dict`` returns."""
    found: List[Tuple[str, Mapping[str, Any]]] = [("what holds it", node["output"])]
    found += [("what is read", each) for each in node["inputs"]]
    if node.get("float32") is not None:
        found.append(("the same in float32", node["float32"]))
    rows = [
        tuple([each["name"], what, *(each[key] for key in ("size", "nans", "infs", "smallest", "largest"))])
        for what, each in found
    ]
    pairs = [("where", str(node["where"])), ("name", str(node["name"])), ("precision", str(node["precision"]))]
    if node.get("overrides"):
        pairs.append(("overrides that mend it", str(node["overrides"]).replace(",", ", ")))
    blocks = facts(pairs), table(_COLUMNS, rows, "Values around it", "tensors")
    return [Section("Where inf or NaN comes up first", blocks, str(node["text"]))]
