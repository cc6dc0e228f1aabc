"""tools.gpu_record.build: what it takes from a libmxnet.so, and what it says where it can't build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mxmp.errors import DependencyError
from tests.tools import fake_mxnet
from tools.gpu_record.build import LIBRARY, build, defined_symbols, find_libmxnet, read_needs, version_script

pytestmark = pytest.mark.compiler

ROOT = Path(__file__).resolve().parent.parent.parent


def assert_refuses(libmxnet, folder, *parts):
    """Building fails with one line of text that has some parts, and leaves nothing."""
    with pytest.raises(DependencyError) as caught:
        build(libmxnet, folder)
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text
    assert not folder.exists() or list(folder.iterdir()) == []


def test_read_needs_takes_symbols_with_versions_and_libraries_of_cuda_alone(libmxnet):
    needs = read_needs(libmxnet)
    expected = {
        name: None if library in fake_mxnet.UNVERSIONED else library
        for library, names in fake_mxnet.LIBRARIES.items()
        for name in names
    }
    assert needs.symbols == expected
    assert needs.libraries == set(fake_mxnet.LIBRARIES)


def test_version_script_groups_symbols_by_version_and_leaves_out_those_without():
    script = version_script({"cudaMalloc": "r", "cudaFree": "r", "cudnnCreate": "d", "ncclReduce": None})
    assert script == "d { global: cudnnCreate; };\nr { global: cudaFree; cudaMalloc; };\n"


def test_build_leaves_the_recorder_under_the_name_of_each_library(recorder):
    assert sorted(path.name for path in recorder.iterdir()) == sorted([LIBRARY, *fake_mxnet.LIBRARIES])
    for name in fake_mxnet.LIBRARIES:
        assert os.path.realpath(recorder / name) == os.path.realpath(recorder / LIBRARY)


def test_build_defines_every_function_that_is_needed_and_hides_its_own(recorder, libmxnet):
    defined = defined_symbols(recorder / LIBRARY)
    assert set(read_needs(libmxnet).symbols) <= defined
    own = {name for name in defined if not re.match(r"__cuda|cu|nccl|nv|lib", name)}
    assert own == {"gpu_record_mark", "gpu_record_open", "gpu_record_deliver"}


def test_built_recorder_is_loaded_by_libmxnet_without_a_word_of_the_loader(recorder, libmxnet):
    code = f"import ctypes; print(ctypes.CDLL({str(libmxnet)!r}, ctypes.RTLD_GLOBAL))"
    environ = {**os.environ, "LD_LIBRARY_PATH": str(recorder), "LD_BIND_NOW": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # ld.so complains of a missing version here


def test_build_compiles_without_a_warning(recorder, libmxnet, tmp_path):
    sources = sorted(map(str, (ROOT / "tools" / "gpu_record").glob("*.c")))
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
    command = [fake_mxnet.compiler(), *flags, "-o", str(tmp_path / "x.so"), *sources, "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_build_replaces_a_recorder_that_is_there(recorder, libmxnet):
    (recorder / LIBRARY).write_bytes(b"old")
    build(libmxnet, recorder)
    assert (recorder / LIBRARY).read_bytes()[:4] == b"\x7fELF"


def test_build_without_a_compiler_says_what_to_install(libmxnet, tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert_refuses(libmxnet, tmp_path / "out", "neither cc nor gcc", "apt-get install gcc")


def test_build_with_a_named_compiler_that_is_not_there_names_it(libmxnet, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-cc -m64")
    assert_refuses(libmxnet, tmp_path / "out", "CC=no-such-cc -m64 is not to be found")


def test_build_with_a_compiler_that_fails_says_what_it_says(libmxnet, tmp_path, monkeypatch):
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'fatal error: no stdio.h here' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    assert_refuses(libmxnet, tmp_path / "out", "broken-cc cannot compile", "fatal error: no stdio.h here")


def test_build_without_libmxnet_says_what_to_install(tmp_path):
    assert_refuses(tmp_path / "libmxnet.so", tmp_path / "out", "is not there", "pip install mxnet-cu112==1.9.1")


def test_build_refuses_what_is_no_shared_object(tmp_path):
    file = tmp_path / "libmxnet.so"
    file.write_text("text")
    assert_refuses(file, tmp_path / "out", "is not a shared object", "pip install mxnet-cu112==1.9.1")


def test_build_refuses_a_cpu_build(tmp_path):
    assert_refuses(fake_mxnet.make(tmp_path, {}), tmp_path / "out", "is a CPU build", "environment of its own")


def test_build_refuses_the_cpu_wheel_that_the_tests_run_on(tmp_path):
    assert_refuses(find_libmxnet(), tmp_path / "out", "is a CPU build")


def test_build_refuses_another_version_of_mxnet(tmp_path):
    file = fake_mxnet.make(tmp_path, version="1.8.0")
    assert_refuses(file, tmp_path / "out", "MXNet 1.8.0", "the recorder is for 1.9.1")


def test_build_refuses_another_version_of_cuda(tmp_path):
    libraries = {"libcudart.so.10.1": ("cudaMalloc",), "libcudnn.so.7": ("cudnnCreate",)}
    file = fake_mxnet.make(tmp_path, libraries)
    assert_refuses(file, tmp_path / "out", "not built for CUDA 11.2", "libcudart.so.10.1, libcudnn.so.7")


def test_build_names_functions_that_the_recorder_lacks(tmp_path):
    libraries = {**fake_mxnet.LIBRARIES, "libcublas.so.11": ("cublasNew", "cublasOther", "cublasSgemm_v2")}
    file = fake_mxnet.make(tmp_path, libraries)
    assert_refuses(file, tmp_path / "out", "needs 2 functions that the recorder lacks: cublasNew, cublasOther")


def test_build_that_fails_keeps_the_recorder_that_is_there(recorder, tmp_path):
    before = (recorder / LIBRARY).read_bytes()
    file = fake_mxnet.make(tmp_path, {**fake_mxnet.LIBRARIES, "libcublas.so.11": ("cublasNew",)})
    with pytest.raises(DependencyError):
        build(file, recorder)
    assert (recorder / LIBRARY).read_bytes() == before
    assert sorted(path.name for path in recorder.iterdir()) == sorted([LIBRARY, *fake_mxnet.LIBRARIES])


def command(*arguments):
    line = [sys.executable, "-m", "tools.gpu_record.build", *map(str, arguments)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True)


def test_command_builds_for_a_libmxnet_that_is_named(libmxnet, tmp_path):
    done = command(tmp_path / "out", "--libmxnet", libmxnet)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "out" / LIBRARY)


def test_command_fails_with_one_line(tmp_path):
    done = command(tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.startswith("mxmp: ") and done.stderr.count("\n") == 1
