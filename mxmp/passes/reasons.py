"""The kinds of reasons that there are for a node's precision, each with its meaning for those who read a report."""

from __future__ import annotations

import enum


class Reason(enum.Enum):
    """A kind of reason; its value is how reports write it, and files keep it.

    A reason's text names more (the node, the dtype, the rule's own reason), and one text may be of several kinds:
    'allow, as softmax2' is ``ALLOW`` and ``STAND_IN``. Texts of no kind explain themselves. Legends have the order of
    this class.

    Attributes:
        meaning: Explains the word; '' where the text of the reason does.
    """

    def __new__(cls, word: str, meaning: str) -> Reason:
        """Make a member of its value and its meaning."""
        member = object.__new__(cls)
        member._value_, member.meaning = word, meaning
        return member

    meaning: str

    ALLOW = "allow", "gains from low precision: matrix products, convolutions"
    DENY = "deny", "needs float32, for the reason behind it"
    INFER = "infer", "as safe as what it reads"
    INFER_BEHIND = "infer behind X", "as safe as what it reads, and X, before it, needs float32"
    AFTER_OVERRIDE = "behind an override", "reads, on the way to the next layer, what an override keeps in float32"
    MANY_TERMS = "many terms", "a sum of sums, or a product of factors, that leaves the dtype's range"
    WIDE = "wide values", "inputs and constants of the network, or computed from these alone"
    CLEAR = "clear", "only moves or selects values, so that either precision is safe"
    CHEAPEST = "cheapest", "moves fewest bytes, or takes fewest casts if shapes are unknown; else float32"
    EXACT = "carries exact values", "counts, indices, values of a variable: never rounded"
    NEAR_ONE = "close to 1", "an output, or a logarithm, tells how far it is from 1"
    LAST_LAYER = "last layer", "the policy keeps it in float32 (last_layer_fp32)"
    PURE = "pure policy", "the policy takes low precision for all that MXNet has a kernel for"
    KEEP_BATCHNORM = "keep_batchnorm_fp32", "the policy keeps BatchNorm in float32"
    CLAMPED = "clamped", "a constant beyond the dtype's range, whose largest value it is now"
    OVERRIDE = "override", "the policy asks for it by name or block, or set_policy for its block"
    OPERATOR = "op override", "the policy asks for it by the operator"
    REGION = "region", "a region of the code asks for it"
    STAND_IN = "as X", "MXNet computes it by its operator X, which has the kernel"
    AS_CONVERTED = "as converted", "a policy that is not known overruled the rule"
    NO_KERNEL = "no sound kernel", "MXNet's is missing, or what it gives is wrong or off on average"
    OWN_CAST = "explicit cast", "the network's own; left as it is"
    NO_RULE = "no rule", "mxmp does not know which inputs may be cast; left as it is"
    NAMED = "named outputs", ""  # its outputs have names that no cast can have
