"""The private names of MXNet that mxmp uses, each with its class or module and the files that use it.

MXNet is retired at 1.9.1, so they do not change. A new one gets a place in the table.
"""

import ast
import functools
import importlib
import inspect
import re
import sys
from collections import namedtuple
from pathlib import Path

import mxnet as mx
import pytest
from mxnet import gluon
from mxnet.gluon.contrib.estimator import BatchProcessor
from mxnet.module.executor_group import DataParallelExecutorGroup

from tests.imports import FILES, tree_of

TABLE = {  # by name: the classes or modules that have it, and the files of mxmp that use it
    "_BlockScope": ([gluon.block], "gluon.conversion gluon.regions"),
    "_LIB": ([mx.base], "arrays distributed gluon.gradients mxnet_private"),
    "_Symbol": ([mx.sym.numpy], "gluon.freeze gluon.trace symbol.inference"),
    "_active": ([gluon.HybridBlock], "gluon.methods tune.speed"),
    "_all_index_update_counts": ([mx.optimizer.Optimizer], "train.state_files train.states"),
    "_allreduce_grads": ([gluon.Trainer], "gluon.gradients"),
    "_arg_params": ([mx.mod.Module], "module.bucketing module.module"),
    "_attr": ([mx.AttrScope], "gluon.regions"),
    "_aux_names": ([mx.mod.Module], "module.module"),
    "_aux_params": ([mx.mod.Module], "module.bucketing module.module"),
    "_backend": ([gluon.HybridBlock], "gluon.cache"),
    "_buckets": ([mx.mod.BucketingModule], "amp.contrib diagnose.subject module.bucketing"),
    "_build_cache": ([gluon.HybridBlock], "gluon.cache gluon.methods"),
    "_cached_graph": (
        [gluon.HybridBlock],
        "amp.contrib diagnose.batches gluon.api gluon.blocks gluon.conversion gluon.files gluon.freeze gluon.methods gluon.regions gluon.trace tune.speed",
    ),
    "_cached_op": ([gluon.HybridBlock], "gluon.blocks gluon.cache gluon.methods tune.speed"),
    "_cached_op_args": ([gluon.HybridBlock], "gluon.blocks gluon.cache gluon.files gluon.methods"),
    "_call_cached_op": ([gluon.HybridBlock], "amp.contrib gluon.methods"),
    "_call_sym_gen": ([mx.mod.BucketingModule], "module.bucketing"),
    "_callback": ([gluon.HybridBlock], "gluon.conversion gluon.freeze"),
    "_check_and_get": ([gluon.Parameter], "mxnet_private"),
    "_children": ([gluon.Block], "gluon.blocks"),
    "_clear_cached_op": ([gluon.HybridBlock], "gluon.conversion gluon.methods"),
    "_collect_params_with_prefix": ([gluon.Block], "gluon.averaged"),
    "_compose": ([mx.sym.Symbol], "gluon.conversion mxnet_private"),
    "_compression_params": (
        [gluon.Trainer, mx.mod.Module, mx.mod.BucketingModule],
        "gluon.adoption gluon.trainer module.module",
    ),
    "_context": (
        [mx.mod.Module, mx.mod.BucketingModule],
        "diagnose.subject diagnose.watch module.binding module.module",
    ),
    "_contexts": ([gluon.Trainer], "gluon.gradients gluon.trainer"),
    "_create_kvstore": ([mx.model], "train.kvstores"),
    "_curr_module": ([mx.mod.BucketingModule], "diagnose.subject diagnose.watch module.bucketing"),
    "_current": ([mx.AttrScope, mx.name.NameManager, gluon.block._BlockScope], "gluon.conversion gluon.regions"),
    "_data": (
        [gluon.Parameter],
        "diagnose.subject gluon.conversion gluon.files gluon.gradients gluon.storage mxnet_private train.masters train.running_stats",
    ),
    "_data_shapes": ([mx.mod.Module], "module.binding module.module"),
    "_default_bucket_key": ([mx.mod.BucketingModule], "amp.contrib module.bucketing"),
    "_deferred_init": ([gluon.Parameter], "gluon.storage mxnet_private"),
    "_deferred_infer_shape": ([gluon.HybridBlock], "gluon.methods"),
    "_differentiable": ([gluon.Parameter], "gluon.gradients gluon.trace train.running_stats"),
    "_dtype": ([gluon.Parameter], "gluon.storage"),
    "_exec_group": ([mx.mod.Module], "diagnose.watch module.module"),
    "_finish_deferred_init": ([gluon.Parameter], "gluon.conversion gluon.storage"),
    "_fixed_param_names": ([mx.mod.Module, mx.mod.BucketingModule], "module.binding module.module"),
    "_flags": ([gluon.HybridBlock], "gluon.cache gluon.freeze"),
    "_flatten": ([gluon.block], "gluon.trace"),
    "_fresh_grad": ([mx.nd.NDArray], "diagnose.subject gluon.gradients train.loss_heads"),
    "_get_data_and_label": ([BatchProcessor], "estimator"),
    "_get_graph": ([gluon.HybridBlock], "gluon.methods gluon.trace"),
    "_get_lrs": ([mx.optimizer.Optimizer], "train.kernels"),
    "_get_wds": ([mx.optimizer.Optimizer], "train.kernels"),
    "_grad": ([gluon.Parameter], "gluon.gradients gluon.storage optimizer"),
    "_grad_req": ([mx.mod.Module], "diagnose.subject module.binding module.module"),
    "_grad_stype": ([gluon.Parameter], "gluon.accumulation gluon.adoption train.kvstores"),
    "_group2ctxs": ([mx.mod.Module, mx.mod.BucketingModule], "module.binding"),
    "_in_format": ([gluon.HybridBlock], "gluon.blocks gluon.freeze gluon.trace"),
    "_index_update_count": ([mx.optimizer.Optimizer], "train.state_files train.states"),
    "_init_impl": ([gluon.Parameter], "gluon.freeze gluon.storage train.masters"),
    "_init_kvstore": ([gluon.Trainer], "gluon.trainer"),
    "_init_optimizer": ([gluon.Trainer], "gluon.trainer"),
    "_init_params": ([gluon.Trainer], "gluon.trainer"),
    "_kv_initialized": ([gluon.Trainer], "gluon.adoption gluon.trainer"),
    "_kvstore": (
        [gluon.Trainer, mx.mod.Module],
        "gluon.adoption gluon.gradients gluon.trainer module.module",
    ),
    "_kvstore_params": ([gluon.Trainer], "gluon.adoption gluon.trainer"),
    "_label_shapes": ([mx.mod.Module], "module.binding module.module"),
    "_load_init": ([gluon.Parameter], "gluon.api gluon.freeze gluon.storage"),
    "_monitor": ([mx.mod.BucketingModule], "module.bucketing"),
    "_monitor_all": ([gluon.HybridBlock], "gluon.conversion"),
    "_mul_scalar": ([mx.nd._internal], "arrays optimizer passes.casts passes.cpu.written_out"),
    "_old_scope": ([gluon.block._BlockScope], "gluon.conversion"),
    "_optimizer": (
        [gluon.Trainer, mx.mod.Module],
        "diagnose.check gluon.adoption gluon.gradients gluon.trainer module.module",
    ),
    "_out_format": ([gluon.HybridBlock], "gluon.blocks gluon.trace"),
    "_param2idx": ([gluon.Trainer], "gluon.trainer"),
    "_param_names": ([mx.mod.Module], "module.binding module.module"),
    "_params": (
        [gluon.Trainer],
        "amp.contrib diagnose.check gluon.accumulation gluon.adoption gluon.gradients gluon.trainer train.loss_heads",
    ),
    "_params_dirty": ([mx.mod.Module, mx.mod.BucketingModule], "module.bucketing module.module"),
    "_params_to_init": ([gluon.Trainer], "gluon.trainer"),
    "_parse_data_desc": ([mx.module.base_module], "module.binding"),
    "_preload_opt_states": ([mx.mod.Module], "module.bucketing module.module"),
    "_reduce": ([gluon.Parameter], "diagnose.subject gluon.api gluon.files gluon.freeze gluon.storage"),
    "_reg_params": ([gluon.Block], "diagnose.batches gluon.methods gluon.storage"),
    "_register_op_hook": ([mx.nd.CachedOp], "gluon.conversion"),
    "_registry": ([mx.operator], "mxnet_private"),
    "_regroup": ([gluon.block], "gluon.conversion"),
    "_reset_bind": ([mx.mod.Module, mx.mod.BucketingModule], "module.bucketing module.module"),
    "_scale": ([gluon.Trainer], "gluon.trainer"),
    "_scope": ([gluon.Block], "gluon.blocks gluon.conversion"),
    "_send_command_to_servers": ([mx.kvstore.KVStore], "distributed"),
    "_set_current_context": ([mx.optimizer.Optimizer], "train.kernels train.multi_precision"),
    "_set_trainer": ([gluon.Parameter], "gluon.trainer"),
    "_state_names": ([mx.mod.Module, mx.mod.BucketingModule], "module.binding"),
    "_stype": ([gluon.Parameter], "gluon.adoption train.kvstores"),
    "_sym_gen": ([mx.mod.BucketingModule], "amp.contrib module.bucketing"),
    "_symbol": ([mx.mod.Module], "module.binding module.module"),
    "_sync_copyfrom": ([mx.nd.NDArray], "train.state_files"),
    "_sync_params_from_devices": ([mx.mod.Module], "diagnose.subject module.module"),
    "_total_exec_bytes": ([mx.mod.Module, DataParallelExecutorGroup], "module.module"),
    "_trainer": (
        [gluon.Parameter],
        "gluon.adoption gluon.averaged gluon.conversion gluon.trainer train.loss_heads",
    ),
    "_update_count": ([mx.optimizer.Optimizer], "train.kernels"),
    "_update_impl": ([mx.optimizer.SGD], "train.kernels"),
    "_update_on_kvstore": ([gluon.Trainer, mx.mod.Module], "gluon.adoption gluon.trainer module.module"),
    "_updater": ([mx.mod.Module], "module.module"),
    "_updaters": ([gluon.Trainer], "gluon.adoption gluon.gradients gluon.trainer"),
    "_work_load_list": ([mx.mod.Module, mx.mod.BucketingModule], "module.binding"),
}

# The private names that a source defines, in a class too, or has on self.
NAME = re.compile(r"(?:\bdef |\bclass |\bself\.|^|^    (?=_\w+ = ))(_(?!_)\w+)", re.MULTILINE)
PYTHONS_OWN = set(dir(namedtuple("_", "")))  # _replace and its like


def source_of(kind):
    module = sys.modules["mxnet.numpy.multiarray"] if kind is mx.np.ndarray else None  # it names another one
    return inspect.getsource(module or kind)


@functools.lru_cache(maxsize=None)
def names_of_class(kind):
    """Return the private names of those bases of a class that are MXNet's."""
    bases = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "mxnet"]
    return {name for base in bases for name in [*NAME.findall(source_of(base)), *vars(base)] if name[:2] != "__"}


def private_uses(module):
    """Yield each private name that a file reads of anything but self, imports from MXNet, or has as a text or keyword."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") not in ("self", "cls"):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mxnet":
            yield from (name for alias in node.names for name in [*node.module.split("."), alias.name])
        elif isinstance(node, ast.Constant) and node.value in TABLE:  # operators have such names too
            yield node.value
        elif isinstance(node, ast.keyword) and node.arg in TABLE:
            yield node.arg


def uses():
    """Return the files of mxmp that use each private name of MXNet."""
    root = Path(mx.__file__).parent
    paths = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in ("contrib", "tools")]
    of_mxnet = {name for path in paths for name in NAME.findall(path.read_text(encoding="utf-8"))} - PYTHONS_OWN
    found = {}
    for module in sorted(FILES):
        names = of_mxnet.intersection(private_uses(module))
        for kind in filter(inspect.isclass, vars(importlib.import_module(module)).values()):
            if kind.__module__ == module and names_of_class(kind):  # its attributes may be MXNet's
                names |= names_of_class(kind).intersection(NAME.findall(inspect.getsource(kind)))
        for name in names:
            found.setdefault(name, []).append(module.partition(".")[2])
    return {name: " ".join(files) for name, files in found.items()}


def test_the_table_lists_the_private_names_of_mxnet_and_the_files_that_use_them():
    """A name of mxmp's own that MXNet has too is to be renamed: in a class that inherits MXNet's it replaces that."""
    expected, found = {name: files for name, (_, files) in TABLE.items()}, uses()
    differ = {name: found.get(name) for name in {*expected, *found} if expected.get(name) != found.get(name)}
    assert not differ, "what the table should have; None: no file uses it"


@pytest.mark.parametrize("name", TABLE)
def test_mxnet_has_each_name(name):
    """A class has an attribute of its instances where one of its methods sets it."""
    for owner in TABLE[name][0]:
        assert hasattr(owner, name) or name in names_of_class(owner), owner
