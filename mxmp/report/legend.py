"""The legend of a report: the meaning of the words in its reasons."""

from __future__ import annotations

import re
from typing import Iterable, List, Tuple

# (where it stands in a reason, how it is written, what it means), in the order of the legend.
_WORDS = [
    (r"^allow\b", "allow", "gains from low precision: matrix products, convolutions"),
    (r"^deny\b", "deny", "needs float32, for the reason behind it"),
    (r"^infer\b(?! behind)", "infer", "as safe as what it reads"),
    (r"^infer behind ", "infer behind X", "as safe as what it reads, and X, before it, needs float32"),
    (r"^clear\b", "clear", "only moves or selects values, so that either precision is safe"),
    (r": cheapest$", "cheapest", "moves fewest bytes, or takes fewest casts if shapes are unknown; else float32"),
    (r"^carries exact values", "carries exact values", "counts, indices, values of a variable: never rounded"),
    (r"^last layer", "last layer", "the policy keeps it in float32 (last_layer_fp32)"),
    (r"^pure policy", "pure policy", "the policy takes low precision for all that MXNet has a kernel for"),
    (r"^keep_batchnorm_fp32", "keep_batchnorm_fp32", "the policy keeps BatchNorm in float32"),
    (r"\boverride\b|^precision '", "override, region", "the policy, a block's policy or a region asks for it by name"),
    (r", as \w+$", "as X", "MXNet computes it by its operator X, which has the kernel"),
    (r"^as converted;", "as converted", "a policy that is not known overruled the rule"),
    (r"^MXNet has no sound ", "no sound kernel", "MXNet's is missing, or what it gives is wrong or off on average"),
    (r"^explicit cast", "explicit cast", "the network's own; left as it is"),
    (r"^no rule for", "no rule", "mxmp does not know which inputs may be cast; left as it is"),
]  # fmt: skip


def legend(reasons: Iterable[str]) -> List[Tuple[str, str]]:
    """Return the words in some reasons, each with its meaning; phrases that explain themselves have none.

    Example:
        >>> legend(["allow", "deny: exp overflows", "allow"])[0]
        ('allow', 'gains from low precision: matrix products, convolutions')
    """
    known = frozenset(reasons)
    return [(word, meaning) for pattern, word, meaning in _WORDS if any(re.search(pattern, each) for each in known)]
