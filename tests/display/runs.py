"""Invented runs: a small network's report, measured gradients, a comparison and steps that show every case."""

import math

from mxmp.diagnose import Comparison, Gradients, Magnitudes, NodeComparison, OutputComparison, Run, Steps
from mxmp.report import Cast, Reason, Report, Row

HOSTILE = "<script>window.broken = true</script>\"'&<img src=x onerror=alert(1)>"


def row(name, op="Convolution", precision="float16", casts=(), inputs=(), reason="allow", kinds=(Reason.ALLOW,)):
    return Row(name, op, precision, reason, tuple(casts), tuple(inputs), kinds)


def report(count=12, **changes):
    """Return the report on a network with a branch, its last operators in float32."""
    cheap = "clear: cheapest", (Reason.CLEAR, Reason.CHEAPEST)
    rows = [row("stem", casts=[Cast("data", "float16"), Cast("stem_weight", "float16")])]
    for i in range(count):
        before = rows[-1].name
        rows.append(row(f"block{i}_conv", inputs=[before]))
        rows.append(row(f"block{i}_relu", "Activation", "float16", (), [f"block{i}_conv"], *cheap))
        rows.append(row(f"block{i}_add", "elemwise_add", "float16", (), [f"block{i}_relu", before], *cheap))
    last = rows[-1].name
    casts = [Cast(f"{last}_output", "float32", last)]
    rows.append(row("prob", "softmax", "float32", casts, [last], "deny: exponentials", (Reason.DENY,)))
    rows.append(row(HOSTILE, HOSTILE, "as it was", [Cast(HOSTILE, "float32", HOSTILE)], ["prob"], HOSTILE, ()))
    fields = {
        "policy": "param=float32,compute=float16,output=float32,loss_scale=dynamic",
        "rows": tuple(rows),
        "casts": 3,
        "activation_casts": 1,
        "cast_bytes": 123_456,
        "activation_bytes": (8_000_000, 4_000_000),
        "without_rule": ("Custom",),
    }
    return Report(**{**fields, **changes})


def gradients():
    layers = {
        f"block{i}_conv_output": Magnitudes({e: 10 + i for e in range(-28 + i, 2 + i)}, i, 0, 2.0 ** (1 + i)) for i in range(8)
    }
    return Gradients({**layers, HOSTILE: Magnitudes(nonfinite=64)})


def compare(**changes):
    names = [each.name for each in report().rows]
    rows = [
        NodeComparison(name, "Convolution", "float16", 1e-4 * (i + 1), math.inf if i == 3 else 1e-3, 1.0 / (i + 1), None if i % 5 == 0 else 1e-3, 2e-3)
        for i, name in enumerate(names)
    ]
    return Comparison(**{"policy": "O1", "rows": tuple(rows), "outputs": (OutputComparison("output0", 0.00123),), **changes})


def steps(count=300):
    found = []
    for i in range(count):
        skipped = i in (40, 41, 200)
        found.append({"step": float(i), "seconds": 0.1 * i, "taken": not skipped, "scale": 2.0 ** (8 + i // 50),
                      "next_scale": 256.0, "grad_norm": math.inf if skipped else 1.0 + i % 7, "loss": 5.0 / (1 + i),
                      "error": HOSTILE if i == 40 else None, "why": None})  # fmt: skip
    return Steps(found)


def whole(name="A run", **changes):
    parts = {"report": report(notes=("Slow here.",)), "steps": steps(), "gradients": gradients(), "compare": compare()}
    return Run(name, {f"{part}.json": record for part, record in {**parts, **changes}.items()})
