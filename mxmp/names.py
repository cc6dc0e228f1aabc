"""The public names by their modules, and the names that users of other libraries try.

An unknown name raises an AttributeError with the right name, or the place of the name in mxmp::

    >>> import mxmp
    >>> mxmp.amp.set_global_policy
    Traceback (most recent call last):
    AttributeError: module 'mxmp.amp' has no attribute 'set_global_policy'; use mxmp.gluon.convert(net, "mixed_float16")
"""

from __future__ import annotations

import functools
import sys
from types import FrameType, ModuleType
from typing import Any, Callable, Dict, List, NoReturn

from . import errors

PUBLIC: Dict[str, List[str]] = {
    module: names.split()
    for module, names in {
        "mxmp": "Policy enable_amx initialize "
        "amp diagnose distributed errors estimator gluon launch loss_scale module onnx optimizer symbol tune",
        "mxmp.amp": "AmpError convert_bucketing_module convert_hybrid_block convert_model convert_symbol disable "
        "disable_casts init init_trainer initialize list_conditional_fp32_ops list_fp32_ops "
        "list_loss_output_functions list_lp16_fp32_ops list_lp16_ops list_lp16_use_fp32_params "
        "list_widest_type_cast lists load_state_dict master_params scale_loss state_dict unscale",
        "mxmp.diagnose": "AmxStatus CSVLogger CheckReport Comparison DoctorReport Explanation Finding Gradients "
        "Magnitudes NodeComparison NonFinite OutputComparison Ranges Run StepLogger StepRecord Steps "
        "TensorBoardLogger ValueRange Watch amx_status check check_devices compare doctor explain "
        "fastest_policy measure_gradients measure_ranges read_run runs_bfloat16",
        "mxmp.distributed": "Engine Horovod KVStore ParameterServer distributed",
        "mxmp.errors": " ".join(errors.__all__),
        "mxmp.estimator": "MixedPrecisionHandler ScalingBatchProcessor",
        "mxmp.gluon": "Accumulator SharedLossScale Trainer adopt_weights averaged cast convert exact_value export "
        "freeze load_checkpoint precision report restore save_checkpoint set_policy",
        "mxmp.launch": "JobResult LAUNCHED LOOPBACK Process TIMED_OUT free_ports plan_processes run",
        "mxmp.loss_scale": "AT_FLOOR DynamicLossScale LARGEST_SCALE LossScale NoOpLossScale SMALLEST_SCALE "
        "StaticLossScale parse",
        "mxmp.module": "BucketingModule Module",
        "mxmp.onnx": "export_model exportable",
        "mxmp.optimizer": "LossScaleOptimizer MultiPrecision all_finite",
        "mxmp.symbol": "Checkpoint Converted ConvertedModel convert_checkpoint "
        "convert_graph convert_model convert_symbol from_graph infer_facts load_checkpoint load_params load_symbol "
        "on_cpu save_checkpoint to_graph",
        "mxmp.tune": "PolicySpeed SearchResult SearchRow SpeedComparison compare_speed search",
    }.items()
}
"""The names in docs/reference, by module: what `dir` shows. A module cannot be asked: importing one imports MXNet."""

GUESSES: Dict[str, List[str]] = {
    answer: names.split()
    for answer, names in {
        # The precision of a program or of a part: PyTorch, Paddle, MindSpore, Keras, jmp, fastai, Lightning, Apex.
        'mxmp.gluon.convert(net, "mixed_float16")': "autocast auto_cast decorate auto_mixed_precision mixed_precision "
        "set_global_policy global_policy set_dtype_policy dtype_policy set_floatx enable_mixed_precision_graph_rewrite "
        "cast_to_compute cast_to_param cast_to_output to_fp16 to_native_fp16 Accelerator prepare convert_network",
        'mxmp.gluon.convert(net, "mixed_bfloat16")': "to_bf16",
        'mxmp.gluon.cast(net, "float16")': "half to_half cast_to_half network_to_half HalfPrecision",
        'mxmp.gluon.precision("float32")': "set_autocast_enabled custom_fwd custom_bwd float_function half_function",
        "mxmp.gluon.restore(net)": "to_fp32 revert undo deconvert unconvert",
        "mxnet.contrib.quantization": "quantize quantization int8 calibrate quantize_net quantize_model",
        "mxmp.gluon.report(net)": "summary is_converted get_policy is_autocast_enabled get_autocast_dtype "
        "get_autocast_gpu_dtype",
        'mxmp.Policy.parse("O1")': "DTypePolicy FloatDTypePolicy MixedPrecision MixedPrecisionPlugin O1 O2 "
        "mixed_float16 mixed_bfloat16",
        'mxmp.Policy.parse("O1", ops={"softmax": "float32"})': "register_half_function register_float_function "
        "register_promote_function promote_function",
        "mxmp.policy.PRESETS": "PRESETS opt_levels",
        '"float16"': "float16 fp16",
        '"bfloat16"': "bfloat16 bf16",
        '"float32"': "float32 fp32",
        # Loss scales and steps: PyTorch, flax, optax, Apex, MindSpore, Keras, Horovod.
        'mxmp.gluon.Trainer(net, ..., loss_scale="dynamic")': "GradScaler DynamicScale apply_if_finite FP16_Optimizer "
        "prep_param_lists model_grads_to_master_grads master_params_to_model_params",
        "mxmp.loss_scale.DynamicLossScale": "LossScaler DynamicLossScaler DynamicLossScaling DynamicLossScaleManager",
        "mxmp.loss_scale.StaticLossScale": "FixedLossScale FixedLossScaleManager StaticLossScaler",
        "mxmp.optimizer.LossScaleOptimizer(mx.optimizer.SGD())": "LossScaleGradientOptimizer get_scaled_loss "
        "get_unscaled_gradients SGD Adam AdamW FusedSGD FusedAdam FusedLAMB",
        "mxmp.gluon.Trainer.clip_global_norm": "clip_grad_norm clip_by_global_norm clip_global_norm global_norm",
        "mxmp.gluon.Trainer.clip_value": "clip_grad_value",
        "mxmp.gluon.Accumulator": "MultiSteps accumulate GradientAccumulator gradient_accumulation",
        "mxmp.gluon.averaged": "AveragedModel ExponentialMovingAverage EMA",
        'mxmp.gluon.Trainer(net, ..., kvstore="horovod")': "DistributedTrainer DistributedOptimizer",
        # Symbols, files and estimators: ONNX and its converters, TensorRT, Gluon, fastai.
        "mxmp.symbol.convert_model": "convert convert_to_mixed_precision convert_float_to_float16",
        "mxmp.symbol.load_checkpoint": "load",
        "mxmp.gluon.freeze": "optimize_for_inference convert_for_inference",
        "mxmp.gluon.export(net, path, for_inference=True)": "save",
        "mxmp.onnx.export_model": "to_onnx export_onnx convert_to_onnx",
        "mxmp.estimator.MixedPrecisionHandler": "Estimator MixedPrecision MixedPrecisionCallback",
        "mxnet.gluon": "nn rnn loss data utils Block HybridBlock SymbolBlock Parameter",
        # Faults and speed: TensorFlow, PyTorch, JAX.
        "mxmp.diagnose.explain": "detect_anomaly set_detect_anomaly check_numerics enable_check_numerics "
        "debug_nans",
        "mxmp.diagnose.runs_bfloat16": "is_bf16_supported is_bfloat16_supported",
        "mxmp.tune.compare_speed": "autotune benchmark",
    }.items()
}
"""The names that users of other libraries try, by ours (docs/guides/coming_from/names.md)."""


def hooks(module: str) -> Dict[str, Callable[..., Any]]:
    """Return ``__getattr__`` and ``__dir__`` of a public module (PEP 562), for its ``globals()``.

    A type checker that saw a ``__getattr__`` in the module would accept any name.
    """

    def __getattr__(name: str) -> Any:
        raise unknown(module, name)

    def __dir__() -> List[str]:
        return sorted(PUBLIC[module])

    return {"__getattr__": __getattr__, "__dir__": __dir__}


class _CalledModule(ModuleType):
    """A module with the name of a function that users try: ``mxmp.report(net)``."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        answers = _answers()[_folded(self.__name__.rpartition(".")[2])]
        raise TypeError(f"{self.__name__} is a module; use {' or '.join(answers)}.")


def refuse_call(module: str) -> None:
    """Have an internal module raise an error when it is called; the text names the public function."""
    sys.modules[module].__class__ = _CalledModule


def unknown(module: str, name: str) -> Exception:
    """Return the error for a name that a module lacks, with advice. The module's ``__getattr__`` raises it.

    It is an AttributeError. In ``from module import name`` it is an ImportError, because Python replaces an
    AttributeError there by one without the advice.
    """
    advice = "" if name.startswith("_") else _advice(module, name)
    if advice and _imports(sys._getframe(2)):  # the caller of __getattr__
        return ImportError(f"cannot import name {name!r} from {module!r}{advice}", name=module)
    error = AttributeError(f"module {module!r} has no attribute {name!r}{advice}")
    if advice:
        # If an AttributeError has no object, Python 3.10 fills in object and name. When it prints the error, it then
        # suggests the name with the nearest spelling: 'report' for 'revert'.
        error.obj = sys.modules[module]
    return error


def _advice(module: str, name: str) -> str:
    import difflib  # few programs need it: a missing name is a mistake

    answers = _answers()
    folded = _folded(name)
    keys = [name, folded, *difflib.get_close_matches(folded, answers, n=1, cutoff=0.85)]
    paths = next((answers[key] for key in keys if key in answers), None)
    if paths is None:
        return errors.did_you_mean(name, dir(sys.modules[module]))
    # A near miss is most likely one of the module's own names.
    return f"; use {' or '.join(sorted(paths, key=lambda path: not path.startswith(f'{module}.')))}"


@functools.lru_cache(maxsize=None)
def _answers() -> Dict[str, List[str]]:
    """Return the names to use by each public name and each guess, also by the folded ones."""
    answers: Dict[str, List[str]] = {}
    homes = {f"{module}.{name}": [name] for module, names in PUBLIC.items() for name in names}
    for answer, names in (*homes.items(), *GUESSES.items()):
        for key in {key for name in names for key in (name, _folded(name))}:
            answers.setdefault(key, []).append(answer)
    return answers


def _folded(name: str) -> str:
    """Return the form in which names are compared: ``GradScaler`` and ``grad_scaler`` are equal."""
    return name.replace("_", "").lower()


def _imports(frame: FrameType) -> bool:
    """Return whether a frame is at ``from ... import``, whose instruction asks the module for a name."""
    from opcode import opmap

    return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]
