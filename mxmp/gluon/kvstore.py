"""Where parameters are updated: by the trainer, or inside of the kvstore."""

from __future__ import annotations

from typing import Any, Iterable, Optional

from ..errors import TrainerError


def choose_update(active: bool, kvstore: Any, choice: Optional[bool], sparse: bool) -> Optional[bool]:
    """Return ``update_on_kvstore`` for MXNet: False wherever it need not be left to MXNet.

    Args:
        active: Whether there is a loss scale, and so a check before each update.
        kvstore: A name, a KVStore or None.
        choice: The user's ``update_on_kvstore``.
        sparse: Whether a parameter is row_sparse, which MXNet can only update on the kvstore.

    Raises:
        TrainerError: If the update would come before the check.
    """
    kind = kvstore if isinstance(kvstore, str) else getattr(kvstore, "type", "")
    if active:
        for refused, what in (
            (choice, "update_on_kvstore=True"),
            ("async" in kind, f"kvstore '{kind}'"),
            (sparse, "the kvstore of a row_sparse parameter"),
        ):
            if refused:
                raise refuse_kvstore_update(what)
        return False
    return choice if choice is not None or sparse or "async" in kind else False


def refuse_kvstore_update(what: str) -> TrainerError:
    """Return the error for an update that the kvstore would make."""
    return TrainerError(
        f"{what} updates weights inside the all-reduce, before their gradients are checked, so one "
        "overflow would destroy them. Leave update_on_kvstore out, or give loss_scale=None."
    )


def any_sparse(params: Any) -> bool:
    """Return whether a parameter is row_sparse; anything but parameters is left to MXNet to refuse."""
    values = params.values() if hasattr(params, "values") else params
    values = values if isinstance(values, Iterable) else ()
    return any(getattr(param, "_stype", "default") != "default" for param in values)
