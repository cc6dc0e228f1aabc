"""Conversion of the symbols of a BucketingModule, which share one set of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Tuple

from ..errors import ConvertError
from ..policy import Policy
from ..report import Decisions, Report
from .arguments import PolicyLike, check_params, contexts_of, make_model, refuse_for_inference, require_kernels
from .params import Change, convert_sharing, widened


@dataclass(frozen=True)
class ConvertedBuckets:
    """The symbols of a BucketingModule, converted, with one set of parameters.

    Attributes:
        models: (symbol, data_names, label_names) by bucket.
        arg_params: Arguments of all of them, in the dtypes that they want.
        aux_params: Auxiliary states.
        decisions: What the reports are made from, by bucket.
        changes: As ``ConvertedModel.changes``.
        out_of_range: As ``ConvertedModel.out_of_range``.
    """

    models: Dict[Any, Tuple[Any, Any, Any]]
    arg_params: Dict[str, Any]
    aux_params: Dict[str, Any]
    decisions: Dict[Any, Decisions]
    changes: Tuple[Change, ...]
    out_of_range: Tuple[str, ...]

    @property
    def reports(self) -> Dict[Any, Report]:
        """What was decided, by bucket."""
        return {key: each.report for key, each in self.decisions.items()}

    @property
    def unfit(self) -> Tuple[str, ...]:
        """The same as `out_of_range`, by its old name."""
        return self.out_of_range

    def sym_gen(self, bucket_key: Any) -> Tuple[Any, Any, Any]:
        """Return a bucket's symbol and names, as BucketingModule asks for them.

        Raises:
            ConvertError: If the bucket was not converted.
        """
        if bucket_key not in self.models:
            raise ConvertError(f"bucket {bucket_key!r} was not converted; known: {list(self.models)}.")
        return self.models[bucket_key]


def convert_buckets(
    sym_gen: Callable[[Any], Tuple[Any, Any, Any]],
    buckets: Iterable[Any],
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    policy: PolicyLike = "O1",
    shapes: Optional[Mapping[Any, Any]] = None,
    **changes: Any,
) -> ConvertedBuckets:
    """Convert all buckets of a BucketingModule, with one set of parameters.

    A parameter is stored in low precision only if every bucket that has it wants it so.

    Args:
        sym_gen: The module's: from a bucket's key to (symbol, data_names, label_names).
        buckets: The keys of all buckets.
        arg_params: Arguments of all buckets, NDArrays by name.
        aux_params: Auxiliary states, likewise.
        policy: A policy or its text.
        shapes: Shapes of inputs by bucket.
        **changes: Fields of the policy that overrule it.

    Raises:
        ConvertError: If there is no bucket, or the parameters do not fit, as for ``convert_model``.
        PolicyError: If the policy does not parse, or one of its patterns matches nothing.
    """
    refuse_for_inference("convert_buckets", changes)
    keys = list(buckets)
    if not keys:
        raise ConvertError("buckets is empty; give the key of every bucket.")
    parsed = Policy.parse(policy, **changes)
    generated = {key: sym_gen(key) for key in keys}
    models = []
    for key, (symbol, _, _) in generated.items():
        models.append(make_model(symbol, (shapes or {}).get(key)))
        check_params(symbol, arg_params, aux_params, models[-1].shapes)
    require_kernels(parsed, contexts_of(arg_params, aux_params), "arg_params")
    args, aux = dict(arg_params), dict(aux_params)
    for model in models:
        args = widened(model.symbol, args)
    found, stored, changed, out_of_range = convert_sharing(models, args, aux, parsed)
    return ConvertedBuckets(
        {key: (each.symbol, *generated[key][1:]) for key, each in zip(keys, found)},
        stored,
        aux,
        {key: each.decisions for key, each in zip(keys, found)},
        changed,
        out_of_range,
    )
