"""The policy itself, an immutable value that checks itself."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from .. import dtypes
from ..errors import DtypeError, PolicyError, did_you_mean
from . import fields

_WILD = frozenset("*?[")


@dataclass(frozen=True)
class Policy:
    """The dtypes of computation, parameters and outputs of a network, and exceptions by operator, name and block.

    Attributes:
        param_dtype: Dtype that parameters are stored in where their readers compute in low
            precision. BatchNorm's parameters and whatever a float32 operator reads stay float32.
        compute_dtype: The low precision dtype, or float32 for no mixed precision.
        output_dtype: Dtype of the network's floating point outputs.
        keep_batchnorm_fp32: Give BatchNorm float32 data too. Its gamma, beta and statistics are float32 always; that
            alone is the default, and needs no cast between a convolution, its BatchNorm and the activation.
        last_layer_fp32: Run the last layer in float32: for each output of the network the matrix
            product or convolution that it comes from, and what lies between. Overrides and regions
            overrule it. Of a Gluon Block with several graphs in it (HybridBlocks in a plain Block) it is
            the last layer of each graph; give the one meant to ``mxmp.gluon.set_policy`` instead.
        pure: Run operators that need float32 (softmax, exp, norms, losses) in low precision too,
            as Apex's O3 does. Only what MXNet's kernels demand stays float32. For baselines.
        out_of_range: What becomes of stored values beyond the compute dtype's range: 'clamp' makes
            them its largest value with their sign, 'float32' keeps what reads them in float32.
        ops: Pairs (operator name, dtype) that overrule the operator's category.
        names: Pairs (pattern of node names, dtype); ``*``, ``?`` and ``[...]`` as in a shell.
        blocks: Pairs (pattern of Gluon block prefixes, dtype); applies to all within the block.
        loss_scale: None, 'dynamic' or a number: what a trainer should be given.

    Overrides are given as dicts or pairs. A name overrules a block, a block overrules an
    operator; between patterns of one kind, low precision overrules float32 (a forced include
    beats an exclude). A region marked by ``mxmp.gluon.precision`` overrules all of them.

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
    ops: fields.Overrides = ()
    names: fields.Overrides = ()
    blocks: fields.Overrides = ()
    loss_scale: fields.LossScaleSpec = None

    def __post_init__(self) -> None:
        """Normalise every field and check the fields against each other."""
        for field in fields.DTYPE_FIELDS.values():
            object.__setattr__(self, field, fields.dtype_field(field, getattr(self, field)))
        for field in fields.OVERRIDE_FIELDS.values():
            object.__setattr__(self, field, fields.override_field(field, getattr(self, field)))
        for field in fields.FLAG_FIELDS:
            if not isinstance(getattr(self, field), bool):
                raise PolicyError(f"{field}={getattr(self, field)!r}: expected True or False.")
        if self.out_of_range not in fields.OUT_OF_RANGE:
            expected = " or ".join(map(repr, fields.OUT_OF_RANGE))
            raise PolicyError(f"out_of_range={self.out_of_range!r}: expected {expected}.")
        object.__setattr__(self, "loss_scale", fields.loss_scale_field(self.loss_scale))
        self._check()

    @property
    def is_mixed(self) -> bool:
        """Whether anything at all runs in low precision."""
        return self.compute_dtype != dtypes.FLOAT32

    @property
    def has_overrides(self) -> bool:
        """Whether it has patterns of operators, names or blocks."""
        return bool(self.ops or self.names or self.blocks)

    def replace(self, **changes: Any) -> "Policy":
        """Return this policy with some fields changed.

        Raises:
            PolicyError: If a field is unknown or the result contradicts itself.
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise PolicyError(f"unknown policy field {name!r}{did_you_mean(name, known)}.")
        return dataclasses.replace(self, **changes)

    @classmethod
    def parse(cls, spec: Union[str, "Policy"], **changes: Any) -> "Policy":
        """Return the policy that a string describes, with some fields changed.

        Args:
            spec: A preset's name ('O0' to 'O3', 'mixed_float16', 'mixed_bfloat16', 'float16', 'bfloat16', 'float32'),
                or comma-separated fields, or a preset followed by fields: 'O2,loss_scale=128',
                'compute=float16,op:softmax=float16', ``'O1,block:resnet0_stage4_*=float32,name:*dense*=float32'``. A
                policy is returned as it is.
            **changes: Fields of the policy that overrule the string's.

        Raises:
            PolicyError: If the string cannot be read; the message quotes it.
        """
        if isinstance(spec, cls):
            return spec.replace(**changes) if changes else spec
        if not isinstance(spec, str):
            raise PolicyError(f"expected a policy or its name, such as 'O1'; found a {type(spec).__name__}.")
        try:
            given = fields.parse_fields(spec)
        except (PolicyError, DtypeError) as e:
            where = f" in policy {spec!r}" if "=" in spec or "," in spec else ""
            raise PolicyError(f"{str(e).rstrip('.')}{where}.") from e
        return cls(**given).replace(**changes)

    def __str__(self) -> str:
        items = [f"{short}={getattr(self, field)}" for short, field in fields.DTYPE_FIELDS.items()]
        items += [f"{field}=True" for field in fields.FLAG_FIELDS if getattr(self, field)]
        if self.out_of_range != fields.OUT_OF_RANGE[0]:
            items.append(f"out_of_range={self.out_of_range}")
        for short, field in fields.OVERRIDE_FIELDS.items():
            items += [f"{short}:{key}={dtype}" for key, dtype in getattr(self, field)]
        if self.loss_scale is not None:
            items.append(f"loss_scale={self.loss_scale}")
        return ",".join(items)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the fields, one to a line."""
        from .. import html  # when it is shown, not with every import of mxmp

        fields_ = [(f.name, _shown(getattr(self, f.name))) for f in dataclasses.fields(self)]
        return html.fragment("Policy", html.policy_sections([pair for pair in fields_ if pair[1]]))

    def override(self, op: str, name: str) -> Optional[Tuple[str, str]]:
        """Return (dtype, what decided) for a node that an override matches, else None."""
        whole, patterns = self._names
        for kind, pairs, matches in (
            ("name", [*whole.get(name, ()), *patterns], lambda key: fnmatchcase(name, key)),
            ("block", self.blocks, lambda key: fnmatchcase(name, block_pattern(key))),
            ("op", self.ops, lambda key: key == op),
        ):
            found = [(dtype, key) for key, dtype in pairs if matches(key)]
            if found:
                dtype, key = min(found, key=lambda item: item[0] == dtypes.FLOAT32)
                return dtype, f"{kind} override {key!r}"
        return None

    @functools.cached_property
    def _names(self) -> Tuple[Dict[str, fields.Overrides], fields.Overrides]:
        """The overrides of whole names, to be looked up, and those of patterns, to be tried one by one."""
        patterns = tuple(pair for pair in self.names if not _WILD.isdisjoint(pair[0]))
        return {pair[0]: (pair,) for pair in self.names if _WILD.isdisjoint(pair[0])}, patterns

    def _check(self) -> None:
        low = self.compute_dtype
        if self.param_dtype not in (dtypes.FLOAT32, low):
            self._refuse("param_dtype", "parameters are stored in float32 or in the dtype that they are computed in.")
        if self.output_dtype not in (dtypes.FLOAT32, low):
            self._refuse("output_dtype", "outputs come in float32 or in the compute dtype.")
        for field in fields.FLAG_FIELDS:
            if getattr(self, field) and not self.is_mixed:
                self._refuse(field, "everything is float32 already.")
        if self.loss_scale not in (None, 1.0) and not self.is_mixed:
            self._refuse("loss_scale", "float32 gradients need no scaling. Set compute_dtype, or leave loss_scale out.")
        for field in fields.OVERRIDE_FIELDS.values():
            for key, dtype in getattr(self, field):
                if dtype not in (dtypes.FLOAT32, low):
                    raise PolicyError(
                        f"{field}: {key!r} is set to {dtype}, but compute_dtype={low!r}; "
                        f"use {' or '.join(sorted({low, dtypes.FLOAT32}))}."
                    )

    def _refuse(self, field: str, why: str) -> None:
        value = f"{field}={getattr(self, field)!r}"
        raise PolicyError(f"{value} with compute_dtype={self.compute_dtype!r} makes no sense: {why}")


def _shown(value: Any) -> str:
    """Return the value of a field as text; '' of what is not set."""
    if isinstance(value, tuple):
        return ", ".join(f"{key}: {dtype}" for key, dtype in value)
    return "" if value is None or value is False else str(value).replace("True", "yes")


def block_pattern(key: str) -> str:
    """Return the pattern of node names within the blocks that a block pattern means."""
    return key if key.endswith("*") else key.rstrip("_") + "_*"


def only_matching(policy: Policy, nodes: Sequence[Tuple[str, str]]) -> Policy:
    """Return a policy without the overrides that apply to none of some nodes, each (operator, name)."""
    ops, names = {op for op, _ in nodes}, [name for _, name in nodes]

    def kept(pairs: fields.Overrides, of_block: bool) -> fields.Overrides:
        patterns = {key: block_pattern(key) if of_block else key for key, _ in pairs}
        return tuple(pair for pair in pairs if any(fnmatchcase(name, patterns[pair[0]]) for name in names))

    of_ops = tuple(pair for pair in policy.ops if pair[0] in ops)
    return policy.replace(ops=of_ops, names=kept(policy.names, False), blocks=kept(policy.blocks, True))


def check_matches(policy: Policy, nodes: Sequence[Tuple[str, str]], blocks: Sequence[str] = ()) -> None:
    """Raise PolicyError, with the nearest names, if an override of a policy applies to nothing.

    ``nodes`` are (operator, name) of every operator node of the network, ``blocks`` the prefixes of its Gluon blocks.
    """
    names = [name for _, name in nodes]
    known_ops = {op for op, _ in nodes}
    for op, _ in policy.ops:
        if op not in known_ops:
            raise PolicyError(f"ops: the network has no operator {op!r}{did_you_mean(op, known_ops)}.")
    for pattern, _ in policy.names:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise PolicyError(f"names: {pattern!r} matches no node{did_you_mean(pattern, names)}.")
    for pattern, _ in policy.blocks:
        if not any(fnmatchcase(name, block_pattern(pattern)) for name in names):
            nearest = did_you_mean(pattern, blocks) if blocks else "; a symbol has nodes alone, give name:pattern"
            raise PolicyError(f"blocks: {pattern!r} matches no block{nearest}.")
