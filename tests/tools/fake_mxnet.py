"""Makes a libmxnet.so that asks for a few functions of CUDA 11.2, by the C compiler; it does nothing else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

# Functions by library. NCCL's and the driver's have no versions, as in the wheel.
LIBRARIES = {
    "libcudart.so.11.0": ("cudaMalloc", "cudaFree", "cudaStreamSynchronize"),
    "libcudnn.so.8": ("cudnnCreate",),
    "libnvrtc.so.11.2": ("nvrtcCompileProgram",),
    "libcuda.so.1": ("cuLaunchKernel",),
    "libnccl.so.2": ("ncclGroupStart",),
}
UNVERSIONED = ("libcuda.so.1", "libnccl.so.2")


def compiler() -> str:
    """Return the C compiler of this machine."""
    found = shutil.which("cc") or shutil.which("gcc")
    assert found is not None, "the tests of the recorder need a C compiler"
    return found


def make(folder: Path, libraries=LIBRARIES, version="1.9.1") -> Path:
    """Make a package in a folder, with a libmxnet.so that needs some functions; returns the file."""
    package = folder / "mxnet"
    package.mkdir(parents=True)
    (package / "libinfo.py").write_text(f'__version__ = "{version}"\n')
    files = [_library(folder, name, functions) for name, functions in libraries.items()]
    functions = [name for names in libraries.values() for name in names]
    source = folder / "mxnet.c"
    calls = "".join(f"int {name}(void); " for name in functions)
    source.write_text(
        calls + "int ask(void) { return " + " + ".join(["0", *(f"{name}()" for name in functions)]) + "; }\n"
    )
    library = package / "libmxnet.so"
    _compile("-Wl,--no-as-needed", "-o", str(library), str(source), *map(str, files))
    return library


def _library(folder: Path, name: str, functions) -> Path:
    source, script, library = folder / f"{name}.c", folder / f"{name}.map", folder / name
    source.write_text("".join(f"int {function}(void) {{ return 0; }}\n" for function in functions))
    listed = " ".join(f"{function};" for function in functions)
    script.write_text(f"{name} {{ global: {listed} }};" if name not in UNVERSIONED else f"{{ global: {listed} }};")
    _compile(f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", "-o", str(library), str(source))
    return library


def _compile(*arguments: str) -> None:
    subprocess.run([compiler(), "-shared", "-fPIC", *arguments], check=True)
