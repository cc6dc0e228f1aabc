"""Records what tensor cores give for float16 convolutions, matrix products and batch normalization.

tests/passes/test_golden.py holds mxmp's emulation of float16 to these recordings. Runs where
PyTorch and a CUDA GPU are; needs numpy besides, neither MXNet nor mxmp::

    python3 tools/record_golden.py --out tests/golden

Each case becomes one file, ``<case>-<device>.npz``: float16 operands ``in_0``, ``in_1``, ... in the
order of MXNet's operator (BatchNorm's gamma and beta are float32), the output's gradient
``head_grad``, the results ``out``, ``grad_0``, ``grad_1``, ... and ``meta``, JSON text with the
operator, its attributes in MXNet's names, the device and all versions.

``--device cpu`` is for trying the script out: on CPU PyTorch 2.13 sums the gradients of
convolutions in float16, so these recordings are not what the emulation is held to.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

SEED = 16
FORMAT = 1

MAX_BYTES = 2**20  # of all files together: they are kept in the repository


@dataclass(frozen=True)
class Case:
    """One call to record.

    Attributes:
        name: First part of the file's name.
        op: MXNet's name of the operator.
        shapes: Of the operands. Channels are multiples of 8, as tensor cores want them.
        attrs: MXNet's attributes of the call.
    """

    name: str
    op: str
    shapes: Tuple[Tuple[int, ...], ...]
    attrs: Mapping[str, Any]


def _convolution(
    name: str, data: Tuple[int, ...], filters: int, kernel: int = 3, stride: int = 1, pad: int = 0, groups: int = 1
) -> Case:
    attrs = {
        "kernel": [kernel] * 2,
        "stride": [stride] * 2,
        "pad": [pad] * 2,
        "num_filter": filters,
        "num_group": groups,
        "no_bias": True,
    }
    return Case(name, "Convolution", (data, (filters, data[1] // groups, kernel, kernel)), attrs)


CASES = (
    _convolution("conv3x3", (2, 16, 12, 12), 32, pad=1),
    _convolution("conv1x1", (2, 64, 8, 8), 32, kernel=1),
    _convolution("conv_strided", (2, 16, 15, 15), 32, stride=2, pad=1),
    _convolution("conv_grouped", (2, 32, 10, 10), 32, pad=1, groups=4),
    Case("gemm", "FullyConnected", ((32, 256), (48, 256)), {"num_hidden": 48, "no_bias": True}),
    Case("batch_matmul", "batch_dot", ((4, 24, 64), (4, 64, 32)), {}),
    Case("batch_norm", "BatchNorm", ((4, 16, 10, 10), (16,), (16,)), {"fix_gamma": False, "eps": 1e-3}),
)


def operands(case: Case) -> List[np.ndarray]:
    """Return a case's operands, random but the same on every machine.

    Weights are scaled so that outputs have the size of inputs. BatchNorm's parameters are float32.
    """
    rng = np.random.RandomState(SEED)
    arrays = [rng.standard_normal(shape) for shape in case.shapes]
    if case.op == "BatchNorm":
        data, gamma, beta = arrays
        return [(2 * data + 1).astype(np.float16), (1 + gamma / 4).astype(np.float32), beta.astype(np.float32)]
    terms = case.shapes[0][2] if case.op == "batch_dot" else int(np.prod(case.shapes[1][1:]))
    return [arrays[0].astype(np.float16), (arrays[1] / np.sqrt(terms)).astype(np.float16)]


def compute(case: Case, torch: Any, tensors: Sequence[Any]) -> Any:
    """Return a case's output."""
    functional, attrs = torch.nn.functional, case.attrs
    if case.op == "Convolution":
        options = {"stride": attrs["stride"], "padding": attrs["pad"], "groups": attrs["num_group"]}
        return functional.conv2d(*tensors, **options)
    if case.op == "FullyConnected":
        return functional.linear(*tensors)
    if case.op == "batch_dot":
        return torch.bmm(*tensors)
    data, gamma, beta = tensors
    return functional.batch_norm(data, None, None, gamma, beta, training=True, eps=attrs["eps"])


def record(case: Case, torch: Any, device: str) -> Dict[str, np.ndarray]:
    """Return a case's operands and results; copies them from the device."""
    arrays = operands(case)
    tensors = [torch.from_numpy(array).to(device).requires_grad_() for array in arrays]
    out = compute(case, torch, tensors)
    head_grad = np.random.RandomState(SEED + 1).standard_normal(tuple(out.shape)).astype(np.float16)
    out.backward(torch.from_numpy(head_grad).to(device))
    found = {f"in_{port}": array for port, array in enumerate(arrays)}
    found.update(head_grad=head_grad, out=out.detach().cpu().numpy())
    found.update({f"grad_{port}": tensor.grad.cpu().numpy() for port, tensor in enumerate(tensors)})
    for port, array in enumerate(arrays):
        if found[f"grad_{port}"].dtype != array.dtype:
            raise RuntimeError(f"{case.name}: the gradient of input {port} is no {array.dtype}.")
    if found["out"].dtype != np.float16:
        raise RuntimeError(f"{case.name}: the output is {found['out'].dtype}, not float16.")
    return found


def use_float32_accumulation(torch: Any) -> Dict[str, Any]:
    """Forbid float16 sums and the choice of algorithms by time; return the settings for the record.

    By default PyTorch lets cuBLAS add the parts of a split sum in float16, which MXNet does not.
    """
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    return {
        "allow_fp16_reduced_precision_reduction": False,
        "cudnn_benchmark": False,
        "cudnn_deterministic": True,
    }


def describe(torch: Any, device: str) -> Dict[str, Any]:
    """Return what is known about the device and the libraries."""
    found: Dict[str, Any] = {"kind": device, "torch": torch.__version__, "numpy": np.__version__}
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        found.update(device=torch.cuda.get_device_name(), capability=f"{major}.{minor}")
        found.update(cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
    else:
        found.update(device=_cpu_name(), capability=None, cuda=None, cudnn=None)
    return found


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return f"CPU {match.group(1) if match else platform.machine()}"


def slug(name: str) -> str:
    """Return a device's name as file names have it."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def write(out: Path, torch: Any, device: str) -> List[Path]:
    """Record every case into a folder and return the files."""
    about = {"format": FORMAT, "seed": SEED, **describe(torch, device), "settings": use_float32_accumulation(torch)}
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for case in CASES:
        meta = json.dumps({"case": case.name, "op": case.op, "attrs": dict(case.attrs), **about}, sort_keys=True)
        files.append(out / f"{case.name}-{slug(about['device'])}.npz")
        np.savez_compressed(files[-1], meta=np.array(meta), **record(case, torch, device))
    return files


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Parse the command line and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write to, made if missing")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    options = parser.parse_args(argv)
    try:
        import torch
    except ImportError:
        parser.error("PyTorch is not installed here; run this where it is (pip install torch).")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(
            "PyTorch finds no CUDA device, and recordings are to come from tensor cores. To record what this "
            "machine's CPU gives, ask for it: --device cpu. The files will say so."
        )
    files = write(options.out, torch, options.device)
    total = sum(file.stat().st_size for file in files)
    for file in files:
        print(f"{file} ({file.stat().st_size} bytes)")
    if total > MAX_BYTES:
        parser.error(f"the files have {total} bytes, more than {MAX_BYTES}; record smaller shapes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
