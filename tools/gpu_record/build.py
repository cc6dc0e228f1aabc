"""Compiles the recorder for an MXNet: ``python -m tools.gpu_record.build FOLDER``.

A C compiler is all it needs: no CUDA, no headers of it, no binutils beyond the compiler's linker.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Set, Union

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from mxmp.errors import DependencyError, MxmpError

SOURCES = Path(__file__).resolve().parent
LIBRARY = "libgpu_record.so"
INSTALL = "pip install mxnet-cu112==1.9.1 (0.5 GB, Linux on x86-64)"

_CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)\w*\.so")
_CUDA_SYMBOL = re.compile(r"__cuda|cu[A-Z]|cu(da|dnn|blas|solver|fft|rand)[A-Z]|nccl|nvrtc|nvtx")
_NEEDED = frozenset({"libcudart.so.11.0", "libcudnn.so.8", "libnvrtc.so.11.2"})  # of a build for CUDA 11.2
_WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter")  # the parameters are those of the functions replaced


@dataclass(frozen=True)
class Needs:
    """What a libmxnet.so wants of CUDA's libraries."""

    libraries: FrozenSet[str]  # file names, like libcudnn.so.8
    symbols: Dict[str, Optional[str]]  # the functions, each with the version that it must have, or None


def build(libmxnet: Union[str, Path], folder: Union[str, Path]) -> Path:
    """Compile the recorder for libmxnet.so of mxnet-cu112 1.9.1, under the names of the libraries that it replaces.

    Returns:
        The shared object, in the folder, which is made if need be.

    Raises:
        DependencyError: If there is no C compiler, libmxnet.so is missing or another, the compiler fails, or MXNet
            needs a function that the recorder lacks. Nothing is left in the folder then.
    """
    libmxnet, folder = Path(libmxnet), Path(folder)
    check_build(libmxnet)
    needs = read_needs(libmxnet)
    compiler = find_compiler()
    folder.mkdir(parents=True, exist_ok=True)
    versions = folder / "versions.map"
    unfinished = folder / f"{LIBRARY}.{os.getpid()}"
    try:
        versions.write_text(version_script(needs.symbols), encoding="utf-8")
        _compile(compiler, versions, unfinished)
        missing = sorted(set(needs.symbols) - defined_symbols(unfinished))
        if missing:
            raise DependencyError(
                f"MXNet needs {len(missing)} functions that the recorder lacks: {', '.join(missing)}; is it mxnet-cu112"
                " 1.9.1 as published? Add them to tools/gpu_record/*.c"
            )
        unfinished.replace(folder / LIBRARY)
    finally:
        for left in filter(Path.exists, (versions, unfinished)):
            left.unlink()
    for link in (folder / name for name in sorted(needs.libraries)):
        if link.is_symlink() or link.exists():
            link.unlink()
        link.symlink_to(LIBRARY)
    return folder / LIBRARY


def find_libmxnet() -> Path:
    """Return libmxnet.so of this Python's MXNet, without importing it; a DependencyError if there is none."""
    spec = find_spec("mxnet")
    if spec is None or not spec.submodule_search_locations:
        raise DependencyError(f"{sys.executable} has no MXNet to record; run: {INSTALL}")
    return Path(next(iter(spec.submodule_search_locations))) / "libmxnet.so"


def check_build(libmxnet: Path) -> None:
    """Check that a libmxnet.so is that of mxnet-cu112 1.9.1; a DependencyError says what it is."""
    if not libmxnet.is_file():
        raise DependencyError(f"{libmxnet} is not there; run: {INSTALL}")
    needed = frozenset(filter(_CUDA_LIBRARY.match, _needed_libraries(libmxnet)))
    version = _mxnet_version(libmxnet.parent)
    if not needed >= _NEEDED or version not in (None, "1.9.1"):
        loads = f"loads {', '.join(sorted(needed))}" if needed else "asks nothing of a GPU"
        raise DependencyError(
            f"{libmxnet} is not that of mxnet-cu112 1.9.1: it is MXNet {version or ''} that {loads}; in an environment"
            f" of its own run: {INSTALL}"
        )


def find_compiler() -> List[str]:
    """Return the command of the C compiler: ``$CC``, cc or gcc; a DependencyError if there is none."""
    names = [os.environ["CC"]] if os.environ.get("CC", "").strip() else ["cc", "gcc"]
    commands = [name.split() for name in names if shutil.which(name.split()[0])]
    if commands:
        return commands[0]
    raise DependencyError(
        f"the recorder is built with a C compiler, but there is no {' or '.join(names)}: install one (Debian, Ubuntu: "
        "apt-get install gcc libc6-dev), or name yours: CC=clang"
    )


def read_needs(libmxnet: Path) -> Needs:
    """Return the libraries and functions of CUDA that a libmxnet.so leaves to others to define."""
    symbols: Dict[str, Optional[str]] = {}
    with open(libmxnet, "rb") as stream:
        elf = ELFFile(stream)
        table = _section(elf, ".dynsym")
        indices, names = _section(elf, ".gnu.version"), _section(elf, ".gnu.version_r")
        # Of MXNet's 200,000 symbols the undefined ones come first, before the hashed ones.
        hashes = _section(elf, ".gnu.hash")
        for number in range(hashes.params["symoffset"] if hashes else table.num_symbols()):
            symbol = table.get_symbol(number)
            if symbol["st_shndx"] == "SHN_UNDEF" and _CUDA_SYMBOL.match(symbol.name):
                symbols[symbol.name] = _version(indices, names, number)
    return Needs(frozenset(filter(_CUDA_LIBRARY.match, _needed_libraries(libmxnet))), symbols)


def version_script(symbols: Dict[str, Optional[str]]) -> str:
    """Return the linker's version script that gives functions their versions; others are defined without one."""
    by_version: Dict[str, List[str]] = {}
    for name, version in sorted(symbols.items()):
        if version is not None:
            by_version.setdefault(version, []).append(f"{name};")
    return "".join(f"{version} {{ global: {' '.join(names)} }};\n" for version, names in sorted(by_version.items()))


def defined_symbols(library: Path) -> Set[str]:
    """Return the functions that a shared object defines for others."""
    with open(library, "rb") as stream:
        table = _section(ELFFile(stream), ".dynsym")
        return {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}


def _needed_libraries(library: Path) -> List[str]:
    try:
        with open(library, "rb") as stream:
            dynamic = _section(ELFFile(stream), ".dynamic")
            return [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")] if dynamic else []
    except ELFError as error:
        raise DependencyError(f"{library} is not a shared object for Linux ({error}); run: {INSTALL}") from error


def _section(elf: ELFFile, name: str) -> Any:
    """Return a section, which has the methods of its kind, or None."""
    return elf.get_section_by_name(name)


def _version(indices: Any, names: Any, number: int) -> Optional[str]:
    """Return the version that a symbol must have, from the tables of versions; None if any will do."""
    index = indices.get_symbol(number)["ndx"] if indices and names else None
    found = names.get_version(index) if isinstance(index, int) else None
    return found[1].name if found else None


def _mxnet_version(package: Path) -> Optional[str]:
    """Return the version in MXNet's libinfo.py beside a libmxnet.so; None if there is none, as in a build folder."""
    info = package / "libinfo.py"
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    return text.partition('__version__ = "')[2].partition('"')[0] or None


def _compile(compiler: List[str], versions: Path, library: Path) -> None:
    sources = sorted(str(path) for path in SOURCES.glob("*.c"))
    command = [*compiler, "-std=gnu11", "-O1", "-fPIC", "-shared", *_WARNINGS, "-o", str(library), *sources]
    command += [f"-Wl,--version-script={versions}", "-ldl", "-lpthread"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        first = next((line for line in done.stdout.splitlines() if "error" in line), done.stdout.strip()[:200])
        raise DependencyError(f"{' '.join(compiler)} cannot compile the recorder to a shared object: {first}")


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Build the recorder for the MXNet of this Python."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_record.build", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="where the recorder goes")
    parser.add_argument("--libmxnet", type=Path, help="libmxnet.so; default: that of this Python's mxnet")
    options = parser.parse_args(arguments)
    try:
        print(build(options.libmxnet or find_libmxnet(), options.folder))
    except (MxmpError, OSError) as error:
        raise SystemExit(f"mxmp: {error}") from error


if __name__ == "__main__":
    main()
