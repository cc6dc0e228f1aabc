"""A result that nobody measured, for tests of what is made of it."""

from mxmp import Policy
from mxmp.devices.speed import read_machine
from mxmp.tune import Change, HoldsFor, Measured, TuneResult

UNTUNED = "mixed_bfloat16"
NAMES = tuple(f"bn{number}" for number in range(5))
TUNED = "normalisations in float32"


def result(policy="mixed_bfloat16,op:BatchNorm=float32", network="0" * 16, shapes=None, **fields):
    """Return a plan that was twice as fast as float32, and holds here."""
    parsed, untuned = Policy.parse(policy), Policy.parse(UNTUNED)
    name = TUNED if parsed.is_mixed and parsed != untuned else "untuned" if parsed.is_mixed else "float32"
    values = {
        "policy": parsed,
        "untuned": untuned,
        "objective": "training",
        "for_inference": False,
        "fastest": name,
        "is_fused": True,
        "seconds": {"float32": 1.0, "untuned": 2.0, TUNED: 0.5},
        "candidates": (
            Measured("untuned", 2.0, 2.0, False),
            Measured(TUNED, 0.5, 0.5, True),
            Measured("sums in float32", None, None, False),
        ),
        "changes": (Change("BatchNorm", "float32", NAMES),),
        "notes": ("A note.",),
        "proved": True,
        "holds_for": holds_for(network, {"data": (2, 3, 8, 8)} if shapes is None else shapes),
    }
    return TuneResult(**{**values, **fields})


def holds_for(network, shapes, options=()):
    """Return that a plan holds here, for float32 inputs."""
    return HoldsFor(read_machine(), "CPU", shapes, network, dict.fromkeys(shapes, "float32"), dict(options))
