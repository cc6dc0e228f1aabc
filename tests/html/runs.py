"""Invented runs: a small network's report, and a ledger, a comparison and steps that show every case."""

from __future__ import annotations

from mxmp.html import run_sections

HOSTILE = "<script>window.broken = true</script>\"'&<img src=x onerror=alert(1)>"


def row(name, op="Convolution", precision="float16", casts=(), inputs=(), reason="allow"):
    return {"name": name, "op": op, "precision": precision, "reason": reason, "casts": casts, "inputs": inputs}


def report(count=12, **changes):
    """Return the dict of a report on a network with a branch, its last operators in float32."""
    rows = [row("stem", casts=["data to float16", "stem_weight to float16"])]
    for i in range(count):
        before = rows[-1]["name"]
        rows.append(row(f"block{i}_conv", inputs=[before]))
        rows.append(row(f"block{i}_relu", "Activation", inputs=[f"block{i}_conv"], reason="clear: cheapest"))
        rows.append(row(f"block{i}_add", "elemwise_add", inputs=[f"block{i}_relu", before], reason="infer: cheapest"))
    last = rows[-1]["name"]
    rows.append(row("prob", "softmax", "float32", [f"{last}_output to float32"], [last], "deny: exponentials"))
    rows.append(row(HOSTILE, HOSTILE, "as it was", [HOSTILE], ["prob"], HOSTILE))
    found = {
        "policy": "param=float32,compute=float16,output=float32",
        "rows": rows,
        "casts": 3,
        "activation_casts": 1,
        "cast_bytes": 123_456,
        "activation_bytes": (8_000_000, 4_000_000),
        "without_rule": ["Custom"],
        "widely_read": [],
        "param_bytes": None,
    }
    return {**found, **changes}


def ledger(**changes):
    layers = [
        {"name": f"block{i}_conv_weight", "elements": 64 * 4**i, "zero_share": 0.01 * i, "subnormal_share": 0.1,
         "largest": 2.0**i, "skips": i % 2, "lost_update_share": None if i % 2 else 0.5,
         "histogram": {str(e): 10 + i for e in range(-28 + i, 2 + i)}}
        for i in range(8)
    ]  # fmt: skip
    layers.append(dict(layers[0], name=HOSTILE, zero_share=None, largest="inf", histogram={}))
    found = {"kind": "ledger", "version": 2, "dtype": "float16", "every": 10, "steps": 100, "sampled": 10, "skipped": 2}
    scale = {"lowest": 256.0, "highest": 65536.0, "last": 1024.0}
    return {**found, "layers": layers, "scale": scale, "advice": ["Keep the scale.", HOSTILE], **changes}


def compare(**changes):
    names = [each["name"] for each in report()["rows"]]
    rows = [
        {"name": name, "op": "Convolution", "precision": "float16", "own": 1e-4 * (i + 1), "carried": 1e-3,
         "contribution": 1.0 / (i + 1), "gradient_own": None if i % 5 == 0 else 1e-3, "gradient_carried": 2e-3}
        for i, name in enumerate(names)
    ]  # fmt: skip
    rows[3]["carried"] = "inf"
    outputs = [{"name": "output0", "error": 0.00123}]
    return {"kind": "compare", "version": 1, "policy": "O1", "rows": rows, "outputs": outputs, **changes}


def steps(count=300):
    found = []
    for i in range(count):
        skipped = i in (40, 41, 200)
        found.append({"step": i, "seconds": 0.1 * i, "taken": not skipped, "scale": 2.0 ** (8 + i // 50),
                      "next_scale": 256.0, "grad_norm": "inf" if skipped else 1.0 + i % 7, "loss": 5.0 / (1 + i),
                      "zero_share": 0.01 if i % 10 == 0 else None, "subnormal_share": None, "largest": None,
                      "error": HOSTILE if i == 40 else None})  # fmt: skip
    return found


def whole():
    """Return the sections of a run of which nothing is missing."""
    warnings = [f"{HOSTILE} is read by 64"]
    return run_sections(report(), steps(), ledger(), compare(), warnings, [("allow", "gains from low precision")])
