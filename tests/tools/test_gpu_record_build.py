"""tools.gpu_record.build: what it takes from a libmxnet.so, and what it says where it can't build."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mxmp.errors import DependencyError
from tests import messages
from tests.tools import fake_mxnet
from tools.gpu_record.build import LIBRARY, build, defined_symbols, find_libmxnet, read_needs

pytestmark = pytest.mark.compiler

ROOT = Path(__file__).resolve().parent.parent.parent


def test_needs_are_the_functions_with_their_versions_and_the_libraries_of_cuda_alone(libmxnet):
    needs, libraries = read_needs(libmxnet), fake_mxnet.LIBRARIES
    versions = {library: None if library in fake_mxnet.UNVERSIONED else library for library in libraries}
    assert needs.symbols == {name: versions[library] for library, names in libraries.items() for name in names}
    assert needs.libraries == set(libraries)


def test_the_recorder_stands_for_each_library_and_hides_its_own_functions(libmxnet, recorder):
    assert sorted(path.name for path in recorder.iterdir()) == sorted([LIBRARY, *fake_mxnet.LIBRARIES])
    assert {os.path.realpath(path) for path in recorder.iterdir()} == {os.path.realpath(recorder / LIBRARY)}
    defined = defined_symbols(recorder / LIBRARY)
    assert set(read_needs(libmxnet).symbols) <= defined
    own = {name for name in defined if not re.match(r"__cuda|cu|nccl|nv|lib", name)}
    assert own == {"gpu_record_mark", "gpu_record_open", "gpu_record_deliver"}


def test_libmxnet_loads_the_recorder_without_a_word_of_the_loader(libmxnet, recorder):
    code = f"import ctypes; print(ctypes.CDLL({str(libmxnet)!r}, ctypes.RTLD_GLOBAL))"
    environ = {**os.environ, "LD_LIBRARY_PATH": str(recorder), "LD_BIND_NOW": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")  # ld.so complains of a missing version here


def test_the_sources_compile_without_a_warning(tmp_path):
    sources = sorted(map(str, (ROOT / "tools" / "gpu_record").glob("*.c")))
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
    command = [fake_mxnet.compiler(), *flags, "-o", str(tmp_path / "x.so"), *sources, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)


def build_with(folder, libraries=fake_mxnet.LIBRARIES, version="1.9.1", **environ):
    """Build for an MXNet that needs some libraries; nothing is left where that fails."""
    out = folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        libmxnet = fake_mxnet.make(folder / "fake", libraries, version) if libraries is not None else folder / "no.so"
        patch.delenv("CC", raising=False)
        for name, value in environ.items():
            patch.setenv(name, value)
        try:
            build(libmxnet, out)
        finally:
            assert not out.exists() or list(out.iterdir()) == []


def broken_compiler(folder):
    (folder / "broken-cc").write_text("#!/bin/sh\necho 'fatal error: no stdio.h here' >&2\nexit 1\n")
    (folder / "broken-cc").chmod(0o755)
    return str(folder / "broken-cc")


def build_for_text(folder):
    (folder / "libmxnet.so").write_text("text")
    build(folder / "libmxnet.so", folder / "out")


OTHER_CUDA = {"libcudart.so.10.1": ("cudaMalloc",), "libcudnn.so.7": ("cudnnCreate",)}
LACKING = {**fake_mxnet.LIBRARIES, "libcublas.so.11": ("cublasNew", "cublasOther", "cublasSgemm_v2")}
RUN = "run: pip install mxnet-cu112==1.9.1 (0.5 GB, Linux on x86-64)"
OTHER = f"...libmxnet.so is not that of mxnet-cu112 1.9.1: it is MXNet {{}}; in an environment of its own {RUN}"
CPU_BUILD = OTHER.format("1.9.1 that asks nothing of a GPU")
MESSAGES = {
    "no compiler": (lambda tmp_path: build_with(tmp_path, PATH=str(tmp_path)), DependencyError, "the recorder is built with a C compiler, but there is no cc or gcc: install one (Debian, Ubuntu: apt-get install gcc libc6-dev), or name yours: CC=clang"),
    "no such compiler": (lambda tmp_path: build_with(tmp_path, CC="no-such-cc -m64"), DependencyError, "...but there is no no-such-cc -m64: install..."),
    "broken compiler": (lambda tmp_path: build_with(tmp_path, CC=broken_compiler(tmp_path)), DependencyError, "...broken-cc cannot compile the recorder to a shared object: fatal error: no stdio.h here"),
    "no libmxnet": (lambda tmp_path: build_with(tmp_path, None), DependencyError, f"...no.so is not there; {RUN}"),
    "text": (build_for_text, DependencyError, f"...libmxnet.so is not a shared object for Linux (...); {RUN}"),
    "no CUDA": (lambda tmp_path: build_with(tmp_path, {}), DependencyError, CPU_BUILD),
    "the CPU wheel": (lambda tmp_path: build(find_libmxnet(), tmp_path / "out"), DependencyError, CPU_BUILD),
    "other MXNet": (lambda tmp_path: build_with(tmp_path, version="1.8.0"), DependencyError, OTHER.format("1.8.0 that loads libcu...")),
    "other CUDA": (lambda tmp_path: build_with(tmp_path, OTHER_CUDA), DependencyError, OTHER.format("1.9.1 that loads libcudart.so.10.1, libcudnn.so.7")),
    "functions that are lacking": (lambda tmp_path: build_with(tmp_path, LACKING), DependencyError, "MXNet needs 2 functions that the recorder lacks: cublasNew, cublasOther; is it mxnet-cu112 1.9.1 as published? Add them to tools/gpu_record/*.c"),
}


@messages.each(MESSAGES)
@pytest.mark.slow
def test_messages(call, error, text, tmp_path, monkeypatch):
    patched = fake_mxnet.compiler()
    monkeypatch.setattr(fake_mxnet, "compiler", lambda: patched)  # also where PATH has none
    (tmp_path / "fake").mkdir()
    messages.check(call, error, text, tmp_path)


@pytest.mark.slow
def test_a_recorder_is_replaced_and_kept_where_that_fails(libmxnet, recorder, tmp_path):
    with pytest.raises(DependencyError):
        build(fake_mxnet.make(tmp_path, LACKING), recorder)
    assert sorted(path.name for path in recorder.iterdir()) == sorted([LIBRARY, *fake_mxnet.LIBRARIES])
    (recorder / LIBRARY).write_bytes(b"old")
    build(libmxnet, recorder)
    assert (recorder / LIBRARY).read_bytes()[:4] == b"\x7fELF"


def test_the_command_builds_for_a_libmxnet_that_is_named_and_fails_with_one_line(libmxnet, tmp_path):
    line = [sys.executable, "-m", "tools.gpu_record.build", str(tmp_path / "out")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("mxmp: ") and done.stderr.count("\n") == 1
    done = subprocess.run([*line, "--libmxnet", str(libmxnet)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "out" / LIBRARY))
