"""Private names of arrays, symbols, executors, attribute scopes, kvstores and the C library."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Optional

import mxnet as mx
from mxnet.base import c_str, check_call

from .names import attribute, global_name, method

_internal = global_name(mx.nd, "_internal", "the operators that have no public name")

is_fresh = attribute(mx.nd.NDArray, "_fresh_grad", "whether backward wrote an array's gradient since it was unset")
copy_from_numpy = method(mx.nd.NDArray, "_sync_copyfrom", "fills an array of any dtype with the bytes of numpy's")
invoke = global_name(_internal, "_imperative_invoke", "runs an operator by its handle, with attributes as texts")
equal = global_name(_internal, "_equal", "compares two arrays into a given one, with no broadcast")
multiply = global_name(_internal, "_mul_scalar", "multiplies by a number in place, keeping the dtype")

library = global_name(mx.base, "_LIB", "the C interface, for what Python has no call for")
compose = method(mx.sym.Symbol, "_compose", "gives the variables of a symbol other symbols, by name")
register_op_hook = method(mx.nd.CachedOp, "_register_op_hook", "has a cached operator report what its operators give")
NumpySymbol = global_name(mx.sym.numpy, "_Symbol", "the class of symbols of mx.np")
executor_symbol = attribute(mx.executor.Executor, "_symbol", "the symbol that an executor runs, read by monitors")

kvstore_updater = attribute(mx.kvstore.KVStore, "_updater", "the updater within a local kvstore; None without one")
send_command_to_servers = method(mx.kvstore.KVStore, "_send_command_to_servers", "sets the servers' multi_precision")
create_kvstore = global_name(mx.model, "_create_kvstore", "makes the kvstore of a module: (store, updates on it)")
parse_data_desc = global_name(mx.module.base_module, "_parse_data_desc", "makes DataDescs of the shapes given to bind")

_current_scope = attribute(mx.AttrScope, "_current", "the innermost AttrScope of each thread")
scope_attrs = attribute(mx.AttrScope, "_attr", "what an AttrScope sets, its outer scopes' included")


def leave_attr_scope(kind: Any, error: Any, stack: Any) -> None:
    """Leave the innermost AttrScope, as at the end of its ``with``."""
    _current_scope(mx.AttrScope).value.__exit__(kind, error, stack)


def attr_scope() -> Optional[Any]:
    """Return the innermost AttrScope of this thread, None where none was entered yet."""
    return getattr(_current_scope(mx.AttrScope), "value", None)


@functools.lru_cache(maxsize=None)
def operator_handle(op: str) -> Any:
    """Return MXNet's handle of an operator, aliases included; MXNetError if there is none of that name."""
    handle = ctypes.c_void_p()
    check_call(library.NNGetOpHandle(c_str(op), ctypes.byref(handle)))
    return handle
