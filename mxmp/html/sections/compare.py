"""A comparison of float32 and low precision: own and carried errors, node by node."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..charts import Line, lines
from ..numbers import figure, to_float
from ..page import Section, facts, grid
from ..tables import BAR, NUMBER, PRECISION, Column, table

_COLUMNS = (
    Column("node"),
    Column("operator"),
    Column("precision", PRECISION, "What it computes in"),
    Column("own", NUMBER, "Relative error of this node alone, its inputs those of float32"),
    Column("carried", NUMBER, "Relative error with all that was rounded before it"),
    Column("contribution", BAR, "What it contributes to the error of the outputs"),
    Column("gradient, own", NUMBER, "Relative error of its gradient, of this node alone"),
    Column("gradient, carried", NUMBER, "Relative error of its gradient, with all that came before"),
)


def compare_sections(compare: Mapping[str, Any], order: Sequence[str] = ()) -> List[Section]:
    """Return the sections of a comparison.

    Args:
        compare: What its ``to_dict`` returns.
        order: Names of the network's operators as they run, where that is known: the chart follows it. Without it, it
            follows the rows.
    """
    rows = compare["rows"]
    names = ("name", "op", "precision", "own", "carried", "contribution", "gradient_own", "gradient_carried")
    body = table(_COLUMNS, [tuple(row.get(name) for name in names) for row in rows], "Errors by layer", "nodes")
    outputs = [(f"error of {each['name']}", _error(each)) for each in compare.get("outputs") or ()]
    policy = ("policy", compare["policy"].replace(",", ", "))
    blocks = (facts([policy, *outputs]), grid(_charts(rows, order)), body)
    lead = (
        "Errors relative to float32, the worst of all batches: 'own' is what a node adds, 'carried' what has added up "
        "in it."
    )
    return [Section("Errors by layer", blocks, lead)]


def _error(output: Mapping[str, Any]) -> str:
    text = str(figure(output["error"]))
    return text if output.get("is_finite", True) else f"{text} of what is finite in float32: not all is"


def _charts(rows: Sequence[Mapping[str, Any]], order: Sequence[str]) -> Tuple[Any, ...]:
    place: Dict[str, int] = {name: i for i, name in enumerate(order)}
    inside = sorted(rows, key=lambda row: place.get(row["name"], len(place))) if order else list(rows)
    where = "from the network's inputs to its outputs" if order else "in the order of the table"
    found = []
    for caption, own, carried in (
        ("Errors of values", "own", "carried"),
        ("Errors of gradients", "gradient_own", "gradient_carried"),
    ):
        series = [Line("carried", _values(inside, carried)), Line("own", _values(inside, own), dots=True)]
        if any(value is not None for line in series for value in line.values):
            found.append(lines(f"{caption}, {where}", list(range(1, len(inside) + 1)), series, "node", "log10"))
    return tuple(found)


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> List[Optional[float]]:
    return [to_float(row.get(name)) for row in rows]
