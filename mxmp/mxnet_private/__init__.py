"""The private names of MXNet that mxmp touches, each under a name of ours: nothing else in mxmp names one.

Each is one line of a table: our name, MXNet's, and what it is relied on for. Importing this package checks that MXNet
has them all. ``blocks.cached_graph(net)`` reads an attribute of any object, and ``blocks.cached_graph.set`` writes it.
For classes that inherit from MXNet's there is a base class, such as `TrainerBase`, in which MXNet's ``_params`` is
``mx_params``, and MXNet's call of ``_init_kvstore`` arrives in ``mx_init_kvstore``.

Internal: it can change with any version of mxmp.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import re
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple, TypeVar

import mxnet as mx
from mxnet import gluon
from mxnet.base import c_str, c_str_array, check_call, py_str
from mxnet.module.executor_group import DataParallelExecutorGroup

from ..errors import DependencyError

EXPECTED = "1.9.1"  # the version of MXNet whose private names these are

Table = Mapping[str, Tuple[str, str]]
"""By a name of ours MXNet's private name, and what it is relied on for."""

_Class = TypeVar("_Class", bound=type)
_Pair = TypeVar("_Pair", bound=Tuple[Any, Any])


class PrivateName(NamedTuple):
    """A private name that mxmp relies on; ``is_assigned`` if instances of a class have it, and not the class."""

    owner: Any
    name: str
    purpose: str
    is_assigned: bool = False

    @property
    def label(self) -> str:
        """The name with its owner's, such as 'mxnet.gluon.block.Block._children'."""
        module = getattr(self.owner, "__module__", None)
        return ".".join(part for part in (module, self.owner.__name__, self.name) if part)

    @property
    def is_there(self) -> bool:
        """Whether MXNet has it; an attribute of instances counts if a method of the class or its bases names it."""
        if hasattr(self.owner, self.name) or not self.is_assigned:
            return hasattr(self.owner, self.name)
        functions = [value for kind in self.owner.__mro__ for value in vars(kind).values() if inspect.isfunction(value)]
        return any(self.name in function.__code__.co_names for function in functions)


REGISTERED: List[PrivateName] = []
OVERRIDES: Dict[type, Dict[str, str]] = {}  # of each base class, MXNet's names of methods by those given here


class attribute(property):
    """An attribute of MXNet's objects: a function of any of them, or a property in a class that inherits."""

    def __init__(self, owner: Any, name: str, purpose: str) -> None:
        _register(owner, name, purpose, is_assigned=True)
        self.name, self.read = name, attrgetter(name)
        own = getattr(owner, name, None)
        if isinstance(own, property) and own.fset is not None:
            self.set = own.fset  # type: ignore[method-assign, assignment]  # one call less for each weight of each step
        super().__init__(self.read, self.set, doc=purpose)

    def __call__(self, value_of: Any) -> Any:
        """Return the value that an object has."""
        return self.read(value_of)

    def set(self, value_of: Any, value: Any) -> None:
        """Give an object another value."""
        setattr(value_of, self.name, value)


class method:
    """A method of MXNet's objects, as a function of any of them and the method's arguments.

    A user's class that overrides the method is asked, as when MXNet calls it.
    """

    def __init__(self, owner: Any, name: str, purpose: str) -> None:
        _register(owner, name, purpose)
        self.name = name

    def __call__(self, called_on: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the method of an object."""
        return getattr(called_on, self.name)(*args, **kwargs)


def global_name(module: Optional[ModuleType], name: str, purpose: str) -> Any:
    """Register a name of a module and return its value, None where it is missing."""
    _register(module, name, purpose)
    return getattr(module, name, None)


def each(kind: Callable[[Any, str, str], Any], owner: Any, table: Table) -> Dict[str, Any]:
    """Register the names of a table, each an `attribute` or a `method` of the owner, and return them by our names."""
    return {public: kind(owner, *row) for public, row in table.items()}


def named(properties: Mapping[str, attribute], overrides: Table) -> Callable[[_Class], _Class]:
    """Return a decorator of a class that inherits from MXNet's: it gives it properties, and methods to override.

    Each name gets ``mx_`` in front. MXNet's call of a method arrives in the one of that name, which calls MXNet's own,
    so that a method of ours reaches it by ``super()``.
    """

    def decorate(base: _Class) -> _Class:
        OVERRIDES[base] = {f"mx_{public}": name for public, (name, _) in overrides.items()}
        for public, of_mxnet in properties.items():
            setattr(base, f"mx_{public}", of_mxnet)
        for public, (name, purpose) in overrides.items():
            _register(base.__bases__[0], name, purpose)
            _let_override(base, f"mx_{public}", name, purpose)
        return base

    return decorate


def _let_override(base: type, public: str, name: str, purpose: str) -> None:
    def arriving(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, public)(*args, **kwargs)

    def original(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(base, self), name)(*args, **kwargs)

    original.__doc__ = purpose
    setattr(base, name, arriving)
    setattr(base, public, original)


def check(version: str = mx.__version__) -> None:
    """Check that MXNet has all names registered so far; raise a DependencyError that names those that are missing."""
    missing = sorted({entry.label for entry in REGISTERED if not entry.is_there})
    if missing:
        raise DependencyError(
            f"MXNet {version} lacks what mxmp relies on in MXNet {EXPECTED}: {', '.join(missing)}. Install MXNet "
            f"{EXPECTED}."
        )


def _register(owner: Any, name: str, purpose: str, is_assigned: bool = False) -> None:
    if owner is not None:  # itself a private name that is missing, and reported
        REGISTERED.append(PrivateName(owner, name, purpose, is_assigned))


# Arrays, symbols, executors, attribute scopes, kvstores and the C library.

library = global_name(mx.base, "_LIB", "the C interface, for what Python has no call for")
_internal = global_name(mx.nd, "_internal", "the operators that have no public name")
equal = global_name(_internal, "_equal", "compares two arrays into a given one, with no broadcast")
multiply = global_name(_internal, "_mul_scalar", "multiplies by a number in place, keeping the dtype")
is_fresh = attribute(mx.nd.NDArray, "_fresh_grad", "whether backward wrote an array's gradient since it was unset")


def fresh_among(pairs: Iterable[_Pair]) -> Iterator[_Pair]:
    """Yield the pairs whose array, the second of each, is fresh: `is_fresh` of many at less than half of its cost."""
    state = ctypes.c_int()
    reference, read = ctypes.byref(state), library.MXNDArrayGetGradState
    for pair in pairs:
        check_call(read(pair[1].handle, reference))
        if state.value:
            yield pair


copy_from_numpy = method(mx.nd.NDArray, "_sync_copyfrom", "fills an array of any dtype with the bytes of numpy's")
compose = method(mx.sym.Symbol, "_compose", "gives the variables of a symbol other symbols, by name")
register_op_hook = method(mx.nd.CachedOp, "_register_op_hook", "has a cached operator report what its operators give")
NumpySymbol = global_name(mx.sym.numpy, "_Symbol", "the class of symbols of mx.np")
kvstore_updater = attribute(mx.kvstore.KVStore, "_updater", "the updater within a local kvstore; None without one")
send_command_to_servers = method(mx.kvstore.KVStore, "_send_command_to_servers", "sets the servers' multi_precision")
create_kvstore = global_name(mx.model, "_create_kvstore", "makes the kvstore of a module: (store, updates on it)")
parse_data_desc = global_name(mx.module.base_module, "_parse_data_desc", "makes DataDescs of the shapes given to bind")
_current_attr_scope = attribute(mx.AttrScope, "_current", "the innermost AttrScope of each thread")
scope_attrs = attribute(mx.AttrScope, "_attr", "what an AttrScope sets, its outer scopes' included")


_custom_operators = global_name(mx.operator, "_registry", "has the CustomOpProp of each Custom operator in a symbol")


def ignores_output_gradient(attrs: Mapping[str, str]) -> bool:
    """Return whether a ``Custom`` operator says that it ignores the gradients of its outputs (``need_top_grad=False``).

    Its CustomOpProp is made once more, as for each symbol. False where it cannot be made.
    """
    before = set(_custom_operators.ref_holder)
    try:
        made = mx.sym.Custom(name="mxmp", **{key: text for key, text in attrs.items() if not key.startswith("__")})
    except mx.MXNetError:
        return False
    held = list(_custom_operators.ref_holder.items())
    del made  # which drops the CustomOpProp from there
    found = [each for key, each in held if key not in before and isinstance(each, mx.operator.CustomOpProp)]
    return bool(found) and not any(map(_uses_output_gradient, found))


def _uses_output_gradient(prop: mx.operator.CustomOpProp) -> bool:
    outputs, inputs = len(prop.list_outputs()), len(prop.list_arguments())
    numbers = list(range(outputs + inputs + outputs))
    parts = numbers[:outputs], numbers[outputs : outputs + inputs], numbers[outputs + inputs :]
    return any(number < outputs for number in prop.declare_backward_dependency(*parts))


def leave_attr_scope(kind: Any, error: Any, stack: Any) -> None:
    """Leave the innermost AttrScope, as at the end of its ``with``."""
    _current_attr_scope(mx.AttrScope).value.__exit__(kind, error, stack)


def attr_scope() -> Optional[Any]:
    """Return the innermost AttrScope of this thread, None where none was entered yet."""
    return getattr(_current_attr_scope(mx.AttrScope), "value", None)


@functools.lru_cache(maxsize=None)
def operator_handle(op: str) -> Any:
    """Return MXNet's handle of an operator, aliases included; MXNetError if there is none of that name."""
    handle = ctypes.c_void_p()
    check_call(library.NNGetOpHandle(c_str(op), ctypes.byref(handle)))
    return handle


def operator_name(op: str) -> str:
    """Return the name that an operator has in graphs: 'Concat' of 'concat'; MXNetError if there is none."""
    name = ctypes.c_char_p()
    check_call(library.MXSymbolGetAtomicSymbolName(operator_handle(op), ctypes.byref(name)))
    return str(py_str(name.value))


# Of attributes of variables, as files before 0.9 have them (kHiddenKeys in src/c_api/c_api_symbolic.cc at tag 1.9.1).
_OF_VARIABLES = re.compile("^(?:{0})|(?:{0})$".format("ctx_group|lr_mult|wd_mult|force_mirroring|mirror_stage"))
_UNNAMED_INPUTS = 16  # more than any operator has that does not name its inputs


def count_inputs(op: str, attrs: Tuple[Tuple[str, str], ...], count: int) -> Optional[Tuple[int, int]]:
    """Return the numbers of arguments and of all inputs, auxiliary states too, of an operator that reads ``count``.

    None if MXNet does not make the operator with these attributes.
    """
    attrs = tuple((key, value) for key, value in attrs if not _OF_VARIABLES.search(key))
    # A user's class may be registered anew.
    count_them = _count_inputs.__wrapped__ if op in ("Custom", "_npi_Custom") else _count_inputs
    return count_them(op, attrs, count)


@functools.lru_cache(maxsize=4096)
def _count_inputs(op: str, attrs: Tuple[Tuple[str, str], ...], count: int) -> Optional[Tuple[int, int]]:
    # An operator that names its inputs gets variables for those that lack; another takes the right number only.
    for number in (count, *range(_UNNAMED_INPUTS)):
        symbol = _make_symbol(op, attrs)
        if symbol is None:
            return None
        with contextlib.suppress(mx.MXNetError):
            compose(symbol, *(mx.sym.var(f"input{i}") for i in range(number)), name="node")
            return len(symbol.list_arguments()), len(symbol.list_inputs())
    # MXNet reads the number of multi_sgd_mom_update's inputs from another operator's parameters, and fails.
    return max(count, 1), max(count, 1)


def _make_symbol(op: str, attrs: Tuple[Tuple[str, str], ...]) -> Any:
    """Return an operator without inputs, None if it has other attributes."""
    handle, create = ctypes.c_void_p(), library.MXSymbolCreateAtomicSymbol
    with contextlib.suppress(mx.MXNetError, UnicodeEncodeError):
        keys, values = (c_str_array([pair[i] for pair in attrs]) for i in (0, 1))
        check_call(create(operator_handle(op), len(attrs), keys, values, ctypes.byref(handle)))
        return mx.sym.Symbol(handle)
    return None


# Gluon blocks: children, cached graphs, and the calls on the way of a hybridized block.

_BlockScope = global_name(gluon.block, "_BlockScope", "the scope of the block that is being built or traced")
_outer_scope = attribute(_BlockScope, "_old_scope", "the scope around one that is entered; None outside of all")
_current_scope = attribute(_BlockScope, "_current", "the innermost scope of each thread")
_current_names = attribute(mx.name.NameManager, "_current", "the innermost NameManager of each thread")
_scope = attribute(gluon.Block, "_scope", "the scope that name_scope enters")
_children = attribute(gluon.Block, "_children", "the blocks within a block, by name")


def children(block: gluon.Block) -> List[gluon.Block]:
    """Return the blocks within a block."""
    return list(_children(block).values())


def named_children(block: gluon.Block) -> Dict[str, gluon.Block]:
    """Return the blocks within a block by their names there."""
    return dict(_children(block))


def collected_params(block: gluon.Block) -> Dict[str, gluon.Parameter]:
    """Return what ``collect_params`` gives, without its look for blocks in lists, which takes most of its time.

    That warns of such blocks: for a warning call the method itself.
    """
    params: Dict[str, gluon.Parameter] = {}
    waiting = [block]
    while waiting:
        inner = waiting.pop()
        method = type(inner).collect_params  # of a converted net one around the net's own
        has_own = getattr(method, "__wrapped__", method) is not gluon.Block.collect_params
        for name, param in (inner.collect_params() if has_own else inner.params).items():
            if params.setdefault(name, param) is not param:
                return dict(block.collect_params().items())  # raises: two parameters have one name
        if not has_own:
            waiting.extend(reversed(children(inner)))
    return params


def is_in_scope(block: gluon.Block) -> bool:
    """Return whether a block that is being traced is so within another one."""
    return _outer_scope(_scope(block)) is not None


def is_any_in_scope() -> bool:
    """Return whether any block is being built or traced in this thread."""
    return getattr(_current_scope(_BlockScope), "value", None) is not None


def thread_scopes() -> List[Tuple[Any, Dict[str, Any]]]:
    """Return the scopes that this thread is in: of attributes, names and blocks."""
    owners = _current_attr_scope(mx.AttrScope), _current_names(mx.name.NameManager), _current_scope(_BlockScope)
    return [(owner, dict(vars(owner))) for owner in owners]


def put_scopes_back(scopes: List[Tuple[Any, Dict[str, Any]]]) -> None:
    """Put this thread in the scopes that it was in."""
    for owner, values in scopes:
        vars(owner).clear()
        vars(owner).update(values)


def formats(block: gluon.HybridBlock) -> Tuple[Any, Any]:
    """Return how a block's inputs and outputs are nested."""
    return blocks.in_format(block), blocks.out_format(block)


def set_graph(block: gluon.HybridBlock, graph: Tuple[Any, Any], nesting: Tuple[Any, Any]) -> None:
    """Give a block a graph, and how its inputs and outputs are nested.

    Past ``Block.__setattr__``, as each call does: that looks for parameters and blocks.
    """
    vars(block).update(_cached_graph=graph, _in_format=nesting[0], _out_format=nesting[1])


def set_op(block: gluon.HybridBlock, op: Any, args: List[Any]) -> None:
    """Give a block a cached operator and its arguments, past ``Block.__setattr__`` too."""
    vars(block).update(_cached_op=op, _cached_op_args=args)


@contextlib.contextmanager
def graph_kept(block: gluon.HybridBlock) -> Iterator[None]:
    """Put a block's graph, formats and scope, which tracing changes, back at the end of this context."""
    graph, nesting, scope = blocks.cached_graph(block), formats(block), dict(vars(_scope(block)))
    try:
        yield
    finally:
        set_graph(block, graph, nesting)
        vars(_scope(block)).update(scope)


blocks = SimpleNamespace(
    **each(
        attribute,
        gluon.HybridBlock,
        {
            "registered_params": ("_reg_params", "the parameters of a block itself, by attribute"),
            "is_active": ("_active", "whether a block is hybridized"),
            "cached_graph": ("_cached_graph", "(inputs, symbol) of a block; () before it is traced"),
            "cached_op": ("_cached_op", "the operator that runs the graph; None before it is built"),
            "cached_op_args": ("_cached_op_args", "(is input, index or parameter) of the operator's inputs"),
            "in_format": ("_in_format", "how the inputs are nested"),
            "out_format": ("_out_format", "how the outputs are nested"),
            "flags": ("_flags", "what hybridize was given for the cached operator: pairs (name, value)"),
            "backend": ("_backend", "the backend that partitions the graph; None for none"),
            "op_hook": ("_callback", "what register_op_hook registered, None without one"),
            "monitors_all": ("_monitor_all", "whether it is called with inputs too"),
        },
    ),
    **each(
        method,
        gluon.HybridBlock,
        {
            "get_graph": ("_get_graph", "gives the inputs and the symbol to run, traced at the first call"),
            "build_cache": ("_build_cache", "makes the cached operator of what _get_graph gives"),
            "call_cached_op": ("_call_cached_op", "runs a hybridized block on arrays"),
            "clear_cached_op": ("_clear_cached_op", "drops the cached graph and its operator"),
            "infer_shapes": ("_deferred_infer_shape", "infers the shapes of parameters from the inputs'"),
        },
    ),
    flatten=global_name(gluon.block, "_flatten", "flattens nested inputs or outputs, and tells how they were nested"),
    regroup=global_name(gluon.block, "_regroup", "nests a flat list again"),
    children=children,
    named_children=named_children,
    collected_params=collected_params,
    params_by_path=method(gluon.Block, "_collect_params_with_prefix", "the parameters by the paths to them"),
    is_in_scope=is_in_scope,
    is_any_in_scope=is_any_in_scope,
    formats=formats,
    set_graph=set_graph,
    set_op=set_op,
    graph_kept=graph_kept,
)

# Gluon parameters: arrays, deferred initialization, what saving and loading call.

_checked = method(gluon.Parameter, "_check_and_get", "gives the arrays, or raises MXNet's error on missing ones")


def is_initialized(param: gluon.Parameter) -> bool:
    """Return whether a parameter has values."""
    return parameters.arrays(param) is not None


def replace_arrays(
    attributes: Dict[str, Any], dtype: Any, arrays: Optional[List[Any]], gradients: Optional[List[Any]]
) -> None:
    """Give the attributes of a parameter, or of a copy of it, a dtype, values and gradients, all in one step."""
    attributes.update(_dtype=dtype, _data=arrays, _grad=gradients)


def is_deferred(param: gluon.Parameter) -> bool:
    """Return whether a parameter gets its values at the first call, when its shape is known."""
    return bool(parameters.deferred_init(param))


def checked_arrays(param: gluon.Parameter) -> List[Any]:
    """Return the values on each context, dense or sparse; raise MXNet's error if there are none (yet)."""
    return list(_checked(param, parameters.arrays(param), list))


def checked_gradients(param: gluon.Parameter) -> List[Any]:
    """Return the gradients on each context, dense or sparse; raises as `checked_arrays`."""
    return list(_checked(param, parameters.gradients(param), list))


parameters = SimpleNamespace(
    **each(
        attribute,
        gluon.Parameter,
        {
            "arrays": ("_data", "the values on each context; None before initialization"),
            "gradients": ("_grad", "the gradients on each context; None where there are none"),
            "deferred_init": ("_deferred_init", "(init, contexts, default init, data) until shapes are known"),
            "dtype": ("_dtype", "what Parameter.dtype gives, set here without a cast"),
            "trainer_of": ("_trainer", "the trainer of a parameter; None without one"),
            "is_differentiable": ("_differentiable", "False for running statistics"),
            "storage_type": ("_stype", "'default' or the sparse storage of the values"),
            "grad_storage_type": ("_grad_stype", "the same of the gradients"),
        },
    ),
    **each(
        method,
        gluon.Parameter,
        {
            "reduced": ("_reduce", "gives the value on the CPU that is saved"),
            "load_value": ("_load_init", "initializes a parameter with a value, as from a file"),
            "finish_deferred_init": ("_finish_deferred_init", "initializes once the shape is known"),
            "set_trainer": ("_set_trainer", "notes the trainer, one for sparse values"),
        },
    ),
    is_initialized=is_initialized,
    replace=replace_arrays,
    is_deferred=is_deferred,
    checked_arrays=checked_arrays,
    checked_gradients=checked_gradients,
)


@named(
    {"arrays": parameters.arrays, "deferred_init": parameters.deferred_init},
    {
        "reduce": ("_reduce", "gives the value on the CPU that is saved"),
        "load_value": ("_load_init", "takes a value from a file"),
        "init_arrays": ("_init_impl", "takes the initial value on the given contexts"),
        "finish_deferred_init": ("_finish_deferred_init", "initializes once the shape is known"),
    },
)
class ParameterBase(gluon.Parameter):
    """A parameter whose private methods, which MXNet calls, can be overridden."""

    mx_deferred_init: Any


# Optimizers: counts of updates, rates, and what an optimizer around another hands on.

_OPTIMIZER_CALLS = {
    "set_current_context": ("_set_current_context", "chooses the device whose counts are used"),
    "update_count": ("_update_count", "counts an update of one index or several"),
    "learning_rates": ("_get_lrs", "gives the learning rates of indices"),
    "weight_decays": ("_get_wds", "gives the weight decays of indices"),
}
optimizers = SimpleNamespace(
    all_update_counts=attribute(mx.optimizer.Optimizer, "_all_index_update_counts", "counts by device and index"),
    update_counts=attribute(mx.optimizer.Optimizer, "_index_update_count", "counts of the present device by index"),
    update_sgd=method(mx.optimizer.SGD, "_update_impl", "updates lists of weights by one kernel, with masters or not"),
    **each(method, mx.optimizer.Optimizer, _OPTIMIZER_CALLS),
)


@named({}, {"set_current_context": _OPTIMIZER_CALLS["set_current_context"]})
class OptimizerBase(mx.optimizer.Optimizer):
    """An optimizer whose private methods, which updaters and optimizers call, can be overridden."""


# Trainers: parameters, updaters, kvstore, and the steps of the setup.

_TRAINER = each(
    attribute,
    gluon.Trainer,
    {
        "params": ("_params", "the parameters, in the order of their indices"),
        "param_indices": ("_param2idx", "the indices by the parameters' names"),
        "params_to_init": ("_params_to_init", "the parameters that the kvstore does not have yet"),
        "contexts": ("_contexts", "the contexts of the parameters; None before they are known"),
        "optimizer": ("_optimizer", "the optimizer, with which updaters are made"),
        "updaters": ("_updaters", "an updater, with the optimizer's states, for each context"),
        "scale": ("_scale", "the rescale_grad that the optimizer was made with"),
        "kvstore": ("_kvstore", "the kvstore; None without one"),
        "kvstore_params": ("_kvstore_params", "the kvstore and update_on_kvstore that were asked for"),
        "is_kvstore_ready": ("_kv_initialized", "whether the kvstore is set up"),
        "updates_on_kvstore": ("_update_on_kvstore", "whether the kvstore updates; None before it is set up"),
        "compression_params": ("_compression_params", "the gradient compression asked for"),
    },
)
_TRAINER_CALLS = {
    "init_optimizer": ("_init_optimizer", "makes the optimizer and the updaters"),
    "init_kvstore": ("_init_kvstore", "opens the kvstore before the first use"),
    "init_params": ("_init_params", "gives the kvstore the parameters that are initialized by now"),
    "reset_kvstore": ("_reset_kvstore", "forgets the kvstore when states or contexts are loaded"),
}


def forget_kvstore(attributes: Dict[str, Any]) -> None:
    """Make the attributes of a trainer those of a copy whose kvstore is still to be opened."""
    params = list(attributes[_TRAINER["params"].name])
    attributes.update(_kvstore=None, _kv_initialized=False, _update_on_kvstore=None, _params_to_init=params)


trainers = SimpleNamespace(
    **_TRAINER,
    forget_kvstore=forget_kvstore,
    **each(method, gluon.Trainer, _TRAINER_CALLS),
    allreduce_grads=method(gluon.Trainer, "_allreduce_grads", "sums gradients over contexts and workers"),
)


@named(_TRAINER, _TRAINER_CALLS)
class TrainerBase(gluon.Trainer):
    """A trainer whose private attributes have names, and whose private methods can be overridden."""

    mx_optimizer: Any
    mx_params_to_init: Any  # for type checkers, as each that a class of ours assigns


# Modules: shapes, executors, parameters, buckets.

_MODULE = each(
    attribute,
    mx.mod.Module,
    {
        "symbol": ("_symbol", "the symbol, as it was given"),
        "context": ("_context", "the list of contexts"),
        "work_load_list": ("_work_load_list", "the share of a batch that each context gets"),
        "param_names": ("_param_names", "the names of the parameters"),
        "aux_names": ("_aux_names", "the names of the auxiliary states"),
        "fixed_param_names": ("_fixed_param_names", "the parameters that are not trained"),
        "state_names": ("_state_names", "the inputs that are states"),
        "group2ctxs": ("_group2ctxs", "the contexts of groups of nodes"),
        "grad_req": ("_grad_req", "the grad_req given to bind; None before it"),
        "data_shapes": ("_data_shapes", "the DataDescs of the data"),
        "label_shapes": ("_label_shapes", "the DataDescs of the labels"),
        "exec_group": ("_exec_group", "the executors, one for each context"),
        "total_exec_bytes": ("_total_exec_bytes", "the memory of the executors, shared on bind"),
        "arg_params": ("_arg_params", "the parameters on the CPU, by name"),
        "aux_params": ("_aux_params", "the auxiliary states on the CPU, by name"),
        "params_dirty": ("_params_dirty", "whether the executors' values are newer than these"),
        "optimizer": ("_optimizer", "the optimizer"),
        "updater": ("_updater", "the updater, with the optimizer's states"),
        "kvstore": ("_kvstore", "the kvstore; None without one"),
        "updates_on_kvstore": ("_update_on_kvstore", "whether the kvstore updates"),
        "compression_params": ("_compression_params", "the gradient compression asked for"),
        "preload_opt_states": ("_preload_opt_states", "the file of states that init_optimizer loads"),
    },
)
_MODULE_CALLS = {
    "reset_bind": ("_reset_bind", "forgets the executors, or the buckets"),
    "sync_params_from_devices": ("_sync_params_from_devices", "copies values from the executors"),
}
_BUCKETS = each(
    attribute,
    mx.mod.BucketingModule,
    {
        "buckets": ("_buckets", "the modules by bucket key"),
        "current": ("_curr_module", "the module of the present bucket"),
        "default_key": ("_default_bucket_key", "the key of the bucket that is bound first"),
        "sym_gen": ("_sym_gen", "makes the symbol of a key"),
        "monitor": ("_monitor", "the monitor that later buckets get too"),
        "params_dirty": ("_params_dirty", "whether the executors' values are newer than the CPU's"),
    },
)
# Of what either was made with, under the names that its constructor has.
_OPTIONS = each(
    attribute,
    mx.mod.BucketingModule,
    {
        name: (f"_{name}", f"the {name} that a module was made with")
        for name in (
            "context",
            "work_load_list",
            "fixed_param_names",
            "state_names",
            "group2ctxs",
            "compression_params",
        )
    },
)


def made_with(module: mx.mod.BaseModule) -> Dict[str, Any]:
    """Return the options that a module of MXNet's was made with, bucketing or not, by the names of its constructor."""
    return {name: of(module) for name, of in _OPTIONS.items()}


modules = SimpleNamespace(
    **{**_MODULE, **_BUCKETS},
    **each(method, mx.mod.Module, _MODULE_CALLS),
    make_symbol=method(mx.mod.BucketingModule, "_call_sym_gen", "makes (symbol, data names, label names) of a key"),
    group_exec_bytes=attribute(DataParallelExecutorGroup, "_total_exec_bytes", "the memory of a group of executors"),
    made_with=made_with,
)


@named(_MODULE, _MODULE_CALLS)
class ModuleBase(mx.mod.Module):
    """A module whose private attributes have names, and whose private methods can be overridden."""

    mx_exec_group: Any
    mx_arg_params: Any
    mx_aux_params: Any
    mx_preload_opt_states: Any


@named(_BUCKETS, {"reset_bind": _MODULE_CALLS["reset_bind"]})
class BucketingModuleBase(mx.mod.BucketingModule):
    """A bucketing module whose private attributes have names, and whose private methods can be overridden."""


check()
