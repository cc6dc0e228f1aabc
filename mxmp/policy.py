"""The precision policy: one immutable value that says which operators and parameters have which dtype.

A policy parses from a string and prints back to one that parses to the same value::

    >>> str(Policy.parse("mixed_float16"))
    'param=float32,compute=float16,output=float32,loss_scale=dynamic'

References:
    jmp (https://github.com/deepmind/jmp) for param, compute and output dtype in one value;
    NVIDIA Apex (https://nvidia.github.io/apex/amp.html) for O0 to O3 and their properties;
    Keras (https://keras.io/api/mixed_precision/policy) for the names of its policies.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Container,
    Dict,
    Iterable,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypedDict,
    Union,
)

from . import dtypes
from .errors import DtypeError, LossScaleError, PolicyError, a_type_of, did_you_mean
from .loss_scale import LossScale, parse
from .names import refuse_call

if TYPE_CHECKING:
    from typing_extensions import Unpack

Overrides = Tuple[Tuple[str, str], ...]
_AnyOverrides = Union[Mapping[str, str], Iterable[Tuple[str, str]]]


class PolicyChanges(TypedDict, total=False):
    """Fields of a `Policy` that a function takes by their names, for editors and type checkers."""

    param_dtype: str
    compute_dtype: str
    output_dtype: str
    keep_batchnorm_fp32: bool
    last_layer_fp32: bool
    pure: bool
    out_of_range: str
    ops: _AnyOverrides
    names: _AnyOverrides
    blocks: _AnyOverrides
    loss_scale: Union[None, str, float]


# The fields by their names in a policy's text.
_DTYPES = {"param": "param_dtype", "compute": "compute_dtype", "output": "output_dtype"}
_FLAGS = ("keep_batchnorm_fp32", "last_layer_fp32", "pure")
_OVERRIDES = {"op": "ops", "name": "names", "block": "blocks"}
_CHOICES: Dict[str, Tuple[Any, ...]] = {**dict.fromkeys(_FLAGS, (True, False)), "out_of_range": ("clamp", "float32")}
_BY_TEXT = {**_DTYPES, **{name: name for name in (*_DTYPES.values(), *_CHOICES, "loss_scale")}}

_WILD = frozenset("*?[")

BLOCKS_ATTR = "__mxmp_blocks__"
"""On a node while its network is converted: what is said of the blocks around it, the strongest last, joined by commas.

A mark is a pattern of the policy that names the block by its path or prefix, or ``path=precision`` as ``set_policy``
says: ``float32``, `LOW` or `AS_POLICY`.
"""

LOW = "low"
"""The precision of a block or region that is in the policy's compute dtype, whatever the operators need."""

AS_POLICY = "policy"
"""The precision of a block or region in which the policy decides as outside of all of them."""

AUTO = "auto"
"""The text of the policy that is chosen for a device where a network is converted (`mxmp.devices.auto`)."""


def is_auto(policy: Any) -> bool:
    """Return whether a policy's text begins with 'auto'."""
    return isinstance(policy, str) and policy.partition(",")[0].strip().lower() == AUTO


def _fields(param: str, compute: str, output: str, **others: Any) -> Dict[str, Any]:
    return {"param_dtype": param, "compute_dtype": compute, "output_dtype": output, **others}


PRESETS: Dict[str, Dict[str, Any]] = {
    "O0": _fields("float32", "float32", "float32"),
    "O1": _fields("float32", "float16", "float32", loss_scale="dynamic"),
    "O2": _fields("float16", "float16", "float32", loss_scale="dynamic"),
    # A baseline of speed: all that has a kernel in low precision, and no scale.
    "O3": _fields("float16", "float16", "float32", pure=True),
    "mixed_float16": _fields("float32", "float16", "float32", loss_scale="dynamic"),
    # bfloat16 has the range of float32, so that its gradients need no scale.
    "mixed_bfloat16": _fields("float32", "bfloat16", "float32"),
    "float16": _fields("float16", "float16", "float16", pure=True),
    "bfloat16": _fields("bfloat16", "bfloat16", "bfloat16", pure=True),
    "float32": _fields("float32", "float32", "float32"),
}
"""Fields of each named policy. O0 to O3 as in Apex, the others as in Keras."""

# The short names that other toolkits have for them. Who asks torch, Accelerate or Lightning for "fp16" or "bf16" gets
# mixed precision; the dtype's full name is Keras' policy of that dtype throughout.
_ALIASES = {
    **dict.fromkeys(("fp16", "half", "mixed_fp16", "fp16-mixed", "16-mixed"), "mixed_float16"),
    **dict.fromkeys(("bf16", "mixed_bf16", "bf16-mixed"), "mixed_bfloat16"),
    **dict.fromkeys(("fp32", "float", "single"), "float32"),
}


@dataclass(frozen=True)
class Policy:
    """The dtypes of computation, parameters and outputs of a network, and exceptions by operator, name and block.

    Attributes:
        param_dtype: Dtype that parameters are stored in where their readers compute in low
            precision. BatchNorm's parameters and all parameters of float32 operators stay float32.
        compute_dtype: The low precision dtype, or float32 for no mixed precision.
        output_dtype: Dtype of the network's floating point outputs.
        keep_batchnorm_fp32: Give BatchNorm float32 data too. Its gamma, beta and statistics are always float32. By
            default its data is not, so that no cast is needed between a convolution, its BatchNorm and the activation.
        last_layer_fp32: Run the last layer in float32. This is the last matrix product or convolution before each
            output of the network, and the operators behind it. Overrides and regions overrule it. In a plain Block of
            several HybridBlocks each HybridBlock has a last layer. Give the one that you mean to
            ``mxmp.gluon.set_policy`` instead.
        pure: Run operators that need float32 (softmax, exp, norms, losses) in low precision too,
            as Apex's O3 does. Operators without a kernel stay float32. For baselines.
        out_of_range: The treatment of stored values beyond the compute dtype's range. 'clamp' makes them its largest
            value with their sign. 'float32' keeps their readers in float32.
        ops: Pairs (operator name, dtype) that overrule the operator's category.
        names: Pairs (pattern of node names, dtype); ``*``, ``?`` and ``[...]`` as in a shell.
        blocks: Pairs (pattern of Gluon blocks, dtype); applies to all within the block. A pattern is compared with
            prefixes (``resnet0_stage1_``) and with paths, as ``load_parameters`` names them (``features.0.body``).
        loss_scale: The loss scale for a trainer: None, 'dynamic' or a number between 2**-126 and 2**126.
        chosen: One sentence on why 'auto' chose this policy; empty otherwise. It is not compared and not printed.

    Overrides are given as dicts or pairs. A name overrules a block, a block overrules an operator. Between patterns of
    names, low precision overrules float32 (a forced include beats an exclude). If blocks are within each other, the
    innermost decides. Between patterns of one block the longest decides. ``mxmp.gluon.set_policy`` gives a block such
    an override too. A region marked by ``mxmp.gluon.precision`` overrules all of them.

    Raises:
        PolicyError: If a dtype is unknown or the fields contradict each other.
    """

    param_dtype: str = dtypes.FLOAT32
    compute_dtype: str = dtypes.FLOAT32
    output_dtype: str = dtypes.FLOAT32
    keep_batchnorm_fp32: bool = False
    last_layer_fp32: bool = False
    pure: bool = False
    out_of_range: str = "clamp"
    ops: Overrides = ()
    names: Overrides = ()
    blocks: Overrides = ()
    loss_scale: Union[None, str, float] = None
    chosen: str = dataclasses.field(default="", compare=False, repr=False)

    must_match: ClassVar[bool] = True
    """Whether an override that applies to nothing in a network is an error."""

    def __post_init__(self) -> None:
        """Normalise every field and check the fields against each other."""
        for field in dataclasses.fields(Policy):
            # The class is frozen for all but itself, as in dataclasses' own __init__.
            object.__setattr__(self, field.name, _normalised(field.name, getattr(self, field.name)))
        self._check()

    @property
    def is_mixed(self) -> bool:
        """Whether anything at all runs in low precision."""
        return self.compute_dtype != dtypes.FLOAT32

    @property
    def has_overrides(self) -> bool:
        """Whether it has patterns of operators, names or blocks."""
        return bool(self.ops or self.names or self.blocks)

    def replace(self, **changes: Unpack[PolicyChanges]) -> Policy:
        """Return this policy with some fields changed.

        Raises:
            PolicyError: If a field is unknown or the result contradicts itself.
        """
        names = [field.name for field in dataclasses.fields(self) if field.compare]
        for name in changes:
            if name not in names:
                raise PolicyError(f"unknown policy field {name!r}{did_you_mean(name, names)}.")
        values: Dict[str, Any] = {**changes, "chosen": "" if "compute_dtype" in changes else self.chosen}
        return dataclasses.replace(self, **values)

    @classmethod
    def parse(cls, spec: Union[str, Policy], **changes: Unpack[PolicyChanges]) -> Policy:
        """Return the policy that a string describes, with some fields changed.

        Args:
            spec: A preset's name ('O0' to 'O3', 'mixed_float16' or 'fp16', 'mixed_bfloat16' or 'bf16', 'float16',
                'bfloat16', 'float32'), or comma-separated fields, or a preset followed by fields: 'O2,loss_scale=128',
                'compute=float16,op:softmax=float16', ``'O1,block:output=float32,name:*dense*=float32'``. The last value
                of a field counts, so that fields may be appended to any text. A policy is returned as it is.
            **changes: Fields of the policy that overrule the string's.

        Raises:
            PolicyError: If the string cannot be read; the message quotes it.
        """
        if isinstance(spec, cls):
            return spec.replace(**changes) if changes else spec
        if not isinstance(spec, str):
            raise PolicyError(f"expected a policy or its name, such as 'O1'; found {a_type_of(spec)}.")
        try:
            policy = cls(**_parse_fields(spec))
        except PolicyError as e:
            where = f"policy {spec!r}: " if "=" in spec or "," in spec else ""
            raise PolicyError(f"{where}{e}") from e
        return policy.replace(**changes) if changes else policy

    def __str__(self) -> str:
        items = [f"{text}={getattr(self, field)}" for text, field in _DTYPES.items()]
        items += [f"{field}=True" for field in _FLAGS if getattr(self, field)]
        if self.out_of_range != "clamp":
            items.append(f"out_of_range={self.out_of_range}")
        for text, field in _OVERRIDES.items():
            items += [f"{text}:{key}={dtype}" for key, dtype in getattr(self, field)]
        if self.loss_scale is not None:
            items.append(f"loss_scale={self.loss_scale}")
        return ",".join(items)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the fields that are set, one to a line."""
        from .display import Facts, Section, page  # when it is shown, not with every import of mxmp

        shown = [(field.name, _shown(getattr(self, field.name))) for field in dataclasses.fields(self) if field.compare]
        return page.fragment("Policy", [Section("Policy", [Facts([pair for pair in shown if pair[1]])])])

    def override(self, op: str, name: str, attrs: Iterable[Tuple[str, str]] = ()) -> Optional[Tuple[str, str]]:
        """Return (dtype, reason) for a node that an override matches, else None.

        Args:
            op: Its operator.
            name: Its name.
            attrs: Its attributes, which the policies of contrib.amp's lists decide by.
        """
        whole, patterns = self._names
        named = [pair for pair in (*whole.get(name, ()), *patterns) if fnmatchcase(name, pair[0])]
        if named:
            # A forced include beats an exclude, whichever is written first.
            key, dtype = min(named, key=lambda pair: pair[1] == dtypes.FLOAT32)
            return dtype, f"name override {key!r}"
        block = self._block_override(name, blocks_on(attrs))
        return block or next(((dtype, f"op override {op!r}") for key, dtype in self.ops if key == op), None)

    def _block_override(self, name: str, marks: Sequence[str]) -> Optional[Tuple[str, str]]:
        """Return (dtype, reason) of the innermost block around a node that an override is about."""
        dtype_of = dict(self.blocks)
        for mark in reversed(marks):
            key, is_own, precision = mark.partition("=")
            if precision == AS_POLICY:
                return None
            if is_own:
                return self.compute_dtype if precision == LOW else precision, f"block override {key!r} (set_policy)"
            if key in dtype_of:
                return dtype_of[key], f"block override {key!r}"
        prefixes = [pair for pair in self.blocks if _applies("blocks", pair[0], "", name)]
        if not prefixes:
            return None
        key, dtype = max(prefixes, key=by_length)
        return dtype, f"block override {key!r}"

    @functools.cached_property
    def _names(self) -> Tuple[Dict[str, Overrides], Overrides]:
        """The overrides of whole names and those of patterns.

        A tuned policy has one name for each of some hundred nodes: these are looked up, not tried one by one.
        """
        patterns = tuple(pair for pair in self.names if not _WILD.isdisjoint(pair[0]))
        return {pair[0]: (pair,) for pair in self.names if _WILD.isdisjoint(pair[0])}, patterns

    def _check(self) -> None:
        low = self.compute_dtype
        for field in ("param_dtype", "output_dtype"):
            if getattr(self, field) not in (dtypes.FLOAT32, low):
                self._refuse(field, "it is float32 or the compute dtype.")
        for field in _FLAGS:
            if getattr(self, field) and not self.is_mixed:
                self._refuse(field, "everything is float32 already.")
        # A scale of 1.0 is none: a script may keep it when it falls back to float32.
        if self.loss_scale not in (None, 1.0) and not self.is_mixed:
            self._refuse("loss_scale", "float32 gradients need no scaling. Set compute_dtype, or leave loss_scale out.")
        for field in _OVERRIDES.values():
            for key, dtype in getattr(self, field):
                if dtype not in (dtypes.FLOAT32, low):
                    raise PolicyError(
                        f"{field}: {key!r} is set to {dtype}, but compute_dtype={low!r}; "
                        f"use {' or '.join(sorted({low, dtypes.FLOAT32}))}."
                    )

    def _refuse(self, field: str, why: str) -> None:
        raise PolicyError(
            f"{field}={getattr(self, field)!r} with compute_dtype={self.compute_dtype!r} makes no sense: {why}"
        )


def check_matches(
    policy: Policy,
    nodes: Sequence[Tuple[str, str]],
    blocks: Sequence[str] = (),
    marked: Container[str] = (),
) -> None:
    """Raise PolicyError, with the nearest names, if an override of a policy applies to nothing.

    Args:
        policy: The policy.
        nodes: (operator, name) of every operator node of the network.
        blocks: The paths and the prefixes of its Gluon blocks.
        marked: The patterns of blocks that its nodes are marked with.
    """
    lookups: Dict[str, Tuple[str, Sequence[str]]] = {
        "ops": ("the network has no operator {}", [op for op, _ in nodes]),
        "names": ("{} matches no node", [name for _, name in nodes]),
        "blocks": ("{} matches no block", blocks),
    }
    for field, (problem, names) in lookups.items():
        for key, _ in getattr(policy, field) if policy.must_match else ():
            applies = any(_applies(field, key, op, name) for op, name in nodes)
            if not (applies or (field == "blocks" and key in marked)):
                of_symbol = field == "blocks" and not blocks
                nearest = did_you_mean(key, names, in_order=field == "blocks")
                if of_symbol:
                    nearest = "; a symbol has nodes alone, give name:pattern"
                elif field == "blocks" and key in names:
                    problem, nearest = "block {} runs no operator", "; name one that does, or leave it out"
                raise PolicyError(f"{field}: {problem.format(repr(key))}{nearest}.")


def by_length(override: Tuple[str, str]) -> Tuple[int, bool]:
    """Return a key that sorts overrides of blocks by strength: the longest is the last; of two, low precision."""
    return len(override[0]), override[1] != dtypes.FLOAT32


def check_blocks(policy: Policy, blocks: Sequence[str]) -> None:
    """Raise PolicyError, with the nearest names, if an override of a block is about no path or prefix of a block."""
    for key, _ in policy.blocks if policy.must_match else ():
        if not any(fnmatchcase(block, key) or _applies("blocks", key, "", block) for block in blocks):
            raise PolicyError(f"blocks: {key!r} matches no block{did_you_mean(key, blocks, in_order=True)}.")


def blocks_on(attrs: Iterable[Tuple[str, str]]) -> Sequence[str]:
    """Return the marks of blocks on a node with these attributes, as `BLOCKS_ATTR` has them."""
    return next((value.split(",") for key, value in attrs if key == BLOCKS_ATTR), [])


def _applies(field: str, key: str, op: str, name: str) -> bool:
    """Return whether an override of a field is about a node: a block's is about all names that begin with it."""
    if field == "ops":
        return key == op
    # A block is meant by its name or its prefix; 'stage1' is not 'stage10'.
    block = field == "blocks" and not key.endswith("*")
    return fnmatchcase(name, key.rstrip("_") + "_*" if block else key)


def _parse_fields(spec: str) -> Dict[str, Any]:
    """Return the fields that a comma-separated text sets, those of its preset among them, as text or checked."""
    fields: Dict[str, Any] = {}
    for number, item in enumerate(part.strip() for part in spec.split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        kind, colon, target = key.partition(":")
        if not equals and number:
            raise PolicyError(f"{item!r} is no 'field=value' pair{_pair_hint(item)}.")
        if not equals:
            fields.update(_preset(item))  # the first item, so that those behind it overrule its fields
        elif colon and (kind not in _OVERRIDES or not target):
            raise PolicyError(f"unknown override {key!r}; expected op:<name>, name:<pattern> or block:<pattern>.")
        elif colon:
            fields.setdefault(_OVERRIDES[kind], []).append((target, value))
        elif key not in _BY_TEXT:
            expected = [*_DTYPES, *_CHOICES, "loss_scale", *(f"{kind}:<name>" for kind in _OVERRIDES)]
            raise PolicyError(f"unknown field {key!r}{did_you_mean(key, expected)}.")
        else:
            field = _BY_TEXT[key]
            fields[field] = {str(choice): choice for choice in _CHOICES.get(field, ())}.get(value, value)
    return fields


def _pair_hint(item: str) -> str:
    """Return the advice for a part of a policy's text that has no value."""
    if item in _FLAGS:
        return f"; write {item}=True"
    if _ALIASES.get(item.lower(), item).lower() in map(str.lower, (*PRESETS, AUTO)):
        return "; it is another policy: give each policy by itself, on the command line with a --policy of its own"
    return ""


def _preset(name: str) -> Dict[str, Any]:
    lowered = _ALIASES.get(name.lower(), name.lower())
    for preset, fields in PRESETS.items():
        if preset.lower() == lowered:
            return fields
    if is_auto(name):
        raise PolicyError(
            "'auto' is chosen where a network is converted: mxmp.gluon.convert and freeze, mxmp.module.Module, "
            "mxmp.symbol.convert_model, `mxmp convert` and `mxmp inspect` take it. Give the policy that they report."
        )
    raise PolicyError(f"unknown policy {name!r}{did_you_mean(name, (*PRESETS, AUTO))}.")


def pattern_of(name: str) -> str:
    """Return the pattern of names that matches a node's name.

    A character that no pattern can hold is written as ``?``, which matches any character.

    Example:
        >>> pattern_of("fc[1]"), pattern_of("a,b")
        ('fc[[]1]', 'a?b')
    """
    escaped = "".join("?" if character in ",=" else character for character in escape(name))
    inner = escaped.strip()
    start = len(escaped) - len(escaped.lstrip())
    return "?" * start + inner + "?" * (len(escaped) - start - len(inner))


def _normalised(field: str, value: Any) -> Any:
    """Return the value of a field as a policy holds it, or raise PolicyError with the field's name."""
    if field in _DTYPES.values():
        return _precision(field, value)
    if field in _OVERRIDES.values():
        return _overrides(field, value)
    if field == "loss_scale":
        return _loss_scale(value)
    if field == "chosen":
        return value
    # By type too, since 1 equals True.
    choices = _CHOICES[field]
    if type(value) is not type(choices[0]) or value not in choices:
        raise PolicyError(f"{field}={value!r}: expected {' or '.join(map(repr, choices))}.")
    return value


def _precision(field: str, value: Any) -> str:
    try:
        name = dtypes.canonical(value)
    except DtypeError as e:
        advice = f" A policy by its name is Policy.parse({value!r})." if value in PRESETS else ""
        raise PolicyError(f"{field}: {e}{advice}") from e
    if name not in dtypes.PRECISIONS:
        raise PolicyError(f"{field}={name!r}: expected float16, bfloat16 or float32.")
    return name


def _overrides(field: str, value: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]) -> Overrides:
    """Return overrides as sorted pairs of pattern and dtype."""
    try:
        pairs = [(key, dtype) for key, dtype in (value.items() if isinstance(value, Mapping) else value)]
    except (TypeError, ValueError):
        raise PolicyError(f"{field}={value!r}: expected a dict or pairs of pattern and dtype.") from None
    dtype_of: Dict[str, str] = {}
    for key, dtype in pairs:
        # A policy prints to a text that parses, so a pattern must not look like the text around it.
        if not isinstance(key, str) or not key or key != key.strip() or any(mark in key for mark in ",="):
            raise PolicyError(
                f"{field}: {key!r} is no pattern of names; it must not be empty, hold ',' or '=', or begin or end with "
                f"a blank. For such a character write '?'."
            )
        if key in dtype_of:
            raise PolicyError(f"{field}: {key!r} is given twice; keep one of them.")
        dtype_of[key] = _precision(f"{field}[{key!r}]", dtype)
    # Sorted, so that policies with the same overrides are equal and have one hash.
    return tuple(sorted(dtype_of.items()))


def _loss_scale(value: Any) -> Union[None, str, float]:
    text = value.strip().lower() if isinstance(value, str) else ""
    if value is None or text == "none":
        return None
    if text == "dynamic":
        return text
    try:
        scale = parse(value)
    except LossScaleError:
        scale = value
    if scale is value:  # no loss scale; or a LossScale, which has no text, for a trainer
        message = f"loss_scale={value!r:.80}: expected None, 'dynamic' or a number between 2**-126 and 2**126."
        raise PolicyError(f"{message} Give a LossScale to the trainer." if isinstance(value, LossScale) else message)
    return float(scale.value)


def _shown(value: Any) -> str:
    """Return the value of a field as text, '' if it is not set."""
    if isinstance(value, tuple):
        return ", ".join(f"{key}: {dtype}" for key, dtype in value)
    return "" if value is None or value is False else str(value).replace("True", "yes")


refuse_call(__name__)
