"""Rule and RuleSet: the types of the table that says in which precisions each operator may run.

The categories are those of TensorFlow's auto_mixed_precision graph pass
(tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h).
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from .. import dtypes
from ..errors import RuleError

ALLOW = "allow"
"""Gains from low precision: matrix products and convolutions."""

INFER = "infer"
"""Safe in low precision by itself, unsafe behind a deny operator."""

CLEAR = "clear"
"""Moves or selects values; as safe as what it reads."""

DENY = "deny"
"""Needs float32: exponentials, norms, losses, coordinates, long reductions."""

CATEGORIES = (ALLOW, INFER, CLEAR, DENY)

ADDS = "adds"
"""Results are sums of as many values as the inputs are together."""

MULTIPLIES = "multiplies"
"""Results are products of the inputs."""

TIMES, OVER = "times", "over"
"""The input times the scalar, or divided by it."""

RESTARTS = "restarts"
"""Results have a size of their own, whatever is read."""

SATURATES = "saturates"
"""Results come so close to 1 that their distance from it needs float32, as those of a sigmoid."""

SHIFTS = "shifts"
"""Results may be the distance of the inputs from 1, as ``1 - x`` is, or be close to 1 as these are, as a mean is."""

MAGNIFIES = "magnifies"
"""Reads the distance of its inputs from 1, as a logarithm does."""

DIVIDES = "divides"
"""Reads the distance of both inputs from 1, if that of the divisor is one."""

SUBTRACTS = "subtracts"
"""Gives the distance of its inputs from the scalar, which is that from 1 where they are close to 1, as ``1 - x``."""

NORMALIZES = "normalizes"
"""Magnifies, and gives vectors of length 1, whose products with each other are close to 1 where they are alike."""

LENGTHS = "lengths"
"""Gives lengths of vectors. A vector that is divided by its length is normalized."""

ENDS = "ends"
"""Is defined up to 1, or from 1 on, and steep there. So all inputs are taken to be close to 1, as those of arccos."""

EVERY: Sequence[int] = range(1 << 16)
"""All ports, however many a call has (``keep=EVERY``)."""

GIVEN = "*"
"""In a rule's ``when``: any value but None."""

Shape = Optional[Tuple[int, ...]]

_WORDS = {"true": True, "false": False}
_LONG = re.compile(r"(?<=\d)L\b")  # of Python 2's sizes, "(2L, 2L)", which MXNet reads


def value_of(attrs: Mapping[str, str], key: str) -> Any:
    """Return an attribute's Python value (number, tuple, bool, None), or its text; a list is a tuple."""
    text = attrs.get(key)
    return None if text is None else _parsed(text)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    """Return the value of a text; cached, because networks repeat the same few."""
    try:
        value = ast.literal_eval(_LONG.sub("", text) if "L" in text else text)
    except (ValueError, SyntaxError):
        return _WORDS.get(text.lower(), text)
    return tuple(value) if isinstance(value, list) else value


def flag_of(attrs: Mapping[str, str], key: str, default: bool) -> bool:
    """Return a boolean attribute, in each spelling that MXNet takes: True, true, 1; ``default`` if it is not given."""
    value = value_of(attrs, key)
    return default if value is None else bool(value)


def sizes_of(attrs: Mapping[str, str], key: str) -> Tuple[int, ...]:
    """Return an attribute with a size for each axis, such as a kernel: (3, 3), [3, 3] or 3; () if it is not given."""
    value = value_of(attrs, key)
    return value if isinstance(value, tuple) else () if value is None else (value,)


@dataclass(frozen=True)
class Call:
    """One call of an operator: its attributes, the shapes of its inputs (None if unknown) and the low dtype."""

    attrs: Mapping[str, str]
    shapes: Tuple[Shape, ...]
    dtype: str


def known_shape(call: Call, port: int) -> Shape:
    """Return an input's shape, None if it is not known in full."""
    shape = call.shapes[port] if port < len(call.shapes) else None
    return None if shape is None or any(size <= 0 for size in shape) else shape


Condition = Callable[[Call], Optional[str]]
"""Returns the reason why a call must stay in float32, or None."""


@dataclass(frozen=True)
class Rule:
    """The precisions that one operator (by its name in the graph, no alias), or one variant of it, may run in.

    Attributes:
        keep: Inputs that are never cast: indices, labels, lengths, and the float32 parameters
            and statistics of BatchNorm. ``EVERY`` where none may be.
        any_dtype: Inputs whose dtype does not matter, so no cast is ever made for them.
        shape_only: Inputs that carry data by their dtype, but of which only the shape is read.
        keep_outputs: Outputs whose dtype is not that of the data (BatchNorm's mean and variance).
        dtypes: Low precision dtypes that MXNet 1.9.1 has a sound kernel for. bfloat16 has kernels only on CPU, float16
            only on GPU (on CPU it is emulated).
        preserves_grid: Inputs on the low precision grid give outputs on the grid, so that emulation needs
            no rounding. False where the result is rounded.
        scalars: Attributes that the kernel rounds to the dtype of the data before it uses them
            (``DType(alpha)`` in src/operator/tensor/elemwise_binary_scalar_op.h at tag 1.9.1).
        when: Attribute values that this variant is for, as text or ``GIVEN``; rules of one operator are tried in order.
        condition: Says why a particular call must stay in float32.
        taints: Whether values of a call that the condition forbids are unsafe for their readers in low precision. They
            are safe if the condition is only about the rounding of sums.
        size: How the size of its results follows from that of its inputs: ``ADDS``, ``MULTIPLIES``, ``TIMES``, ``OVER``
            or ``RESTARTS``. By default it is the largest size of an input. An allow operator restarts.
        sums: Function that returns of how many values each result is the sum. None if it is no sum. A result of
            softmax is a share: a part of one value.
        gives_indices: Whether it gives positions or counts, which no low precision holds. It runs in float32 under
            every policy, and so do operators that move the positions.
        counts: Whether it gives positions if no product has rounded its inputs, as cumsum does.
        maps_indices: Whether a product of positions stays float32, because its results are positions too.
        is_boolean: Whether it only gives 0 and 1.
        distance: Its effect on the distance of values from 1: one of the words from ``SATURATES`` to ``ENDS``. By
            default results depend on the distance of the inputs. Results of ``RESTARTS`` do not.
        float32_attr: Attribute with which the operator reads low precision data, and computes in and gives
            float32; empty if it has none. It saves a cast.
        substitutes: Operators that compute the same if this one has no low precision kernel, or none with safe sums.
            They are pairs (number of dimensions of an input, operator). They take its ``transpose_a`` and
            ``transpose_b``. Its ``alpha`` becomes a factor on input 0.
        substitute_port: The input whose dimensions ``substitutes`` counts.
        substitute_defaults: Pairs (attribute, value as text). A call with another value has no substitute.
        loss_head: Whether the gradient of input 0 never depends on that of the output. SoftmaxOutput's ``out_grad``
            changes nothing about that in MXNet 1.9.1.
        unwritten_gradient: Whether MXNet leaves the gradients of its inputs unwritten, so that they are the old
            contents of the memory.
    """

    op: str
    category: str
    keep: Sequence[int] = ()
    any_dtype: Sequence[int] = ()
    shape_only: Sequence[int] = ()
    keep_outputs: Sequence[int] = ()
    dtypes: FrozenSet[str] = frozenset(dtypes.LOW_PRECISION)
    preserves_grid: bool = False
    scalars: Tuple[str, ...] = ()
    when: Tuple[Tuple[str, str], ...] = ()
    condition: Optional[Condition] = None
    taints: bool = True
    size: str = ""
    sums: Optional[Callable[[Call], Optional[float]]] = None
    gives_indices: bool = False
    counts: bool = False
    maps_indices: bool = False
    is_boolean: bool = False
    distance: str = ""
    reason: str = ""
    float32_attr: str = ""
    substitutes: Tuple[Tuple[int, str], ...] = ()
    substitute_port: int = 0
    substitute_defaults: Tuple[Tuple[str, str], ...] = ()
    loss_head: bool = False
    unwritten_gradient: bool = False

    def __post_init__(self) -> None:
        """Check the category."""
        if self.category not in CATEGORIES:
            raise RuleError(f"{self.op!r}: unknown category {self.category!r}; expected one of {CATEGORIES}.")

    def matches(self, attrs: Mapping[str, str]) -> bool:
        """Return whether this variant is the one for these attributes."""
        return all(_is(attrs, key, value) for key, value in self.when)

    def is_data(self, port: int) -> bool:
        """Return whether an input carries data, which has the operator's precision."""
        return port not in self.keep and port not in self.any_dtype

    def reads(self, port: int) -> bool:
        """Return whether the values of an input are data."""
        return self.is_data(port) and port not in self.shape_only

    def forbids(self, call: Call) -> Optional[str]:
        """Return the reason why a call must stay in float32 under every policy but a pure one, or None."""
        return self.condition(call) if self.condition else None


@dataclass(frozen=True)
class RuleSet:
    """All rules, found by operator.

    Raises RuleError if an operator has two rules for the same attributes, or a rule that is never reached behind a more
    general one.
    """

    rules: Tuple[Rule, ...]
    _by_op: Dict[str, List[Rule]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the rules by operator and check that no two collide."""
        by_op: Dict[str, List[Rule]] = {}
        for rule in self.rules:
            variants = by_op.setdefault(rule.op, [])
            for other in variants:
                # Rules are tried in order: one that asks for less comes later.
                if set(other.when) <= set(rule.when):
                    raise RuleError(_collision(other, rule))
            variants.append(rule)
        object.__setattr__(self, "_by_op", by_op)

    def find(self, op: str, attrs: Mapping[str, str]) -> Optional[Rule]:
        """Return the rule for an operator with these attributes, or None if there is none."""
        for rule in self._by_op.get(op, ()):
            if not rule.when or rule.matches(attrs):
                return rule
        return None

    def variants(self, op: str) -> Sequence[Rule]:
        """Return the rules of an operator in the order in which they are tried."""
        return self._by_op.get(op, ())

    def substitute(self, rule: Rule, call: Call) -> str:
        """Return the operator that replaces another in ``call.dtype``, empty if none does."""
        shape = call.shapes[rule.substitute_port] if call.shapes else None
        fits = all(key not in call.attrs or _is(call.attrs, key, value) for key, value in rule.substitute_defaults)
        op = dict(rule.substitutes).get(len(shape), "") if shape is not None and fits else ""
        # float16 has kernels for all of them, bfloat16 for none: then the operator itself stays, in float32.
        rule_of_substitute = self.find(op, call.attrs) if op else None
        return op if rule_of_substitute is not None and call.dtype in rule_of_substitute.dtypes else ""

    def has_substitutes(self, rule: Rule, dtype: str) -> bool:
        """Return whether something may be put in an operator's place in a dtype, for some calls."""
        return any(dtype in rule_of_op.dtypes for _, op in rule.substitutes for rule_of_op in self._by_op.get(op, ()))

    def ops(self) -> Iterable[str]:
        """Return the names of all operators that have a rule."""
        return self._by_op.keys()

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)


def _is(attrs: Mapping[str, str], key: str, value: str) -> bool:
    """Return whether an attribute has a value, however it is spelled (True, true, 1)."""
    # MXNet fills in defaults when it makes a node, not when it writes one: an attribute that is left out has no value.
    actual = value_of(attrs, key)
    return actual is not None if value == GIVEN else bool(actual == value_of({key: value}, key))


def _collision(first: Rule, second: Rule) -> str:
    if first.category != second.category:
        return f"{first.op!r} is in both {first.category} and {second.category}; keep it in one."
    return f"{first.op!r}: the rule for {dict(second.when)} is never reached behind the one for {dict(first.when)}."
