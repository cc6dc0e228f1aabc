"""tools.gpu_record.build: what it takes from a libmxnet.so, and what it says where it can't build."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mxmp.errors import DependencyError
from tests.tools import fake_mxnet
from tools.gpu_record.build import LIBRARY, build, defined_symbols, read_needs

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


LACKING = {**fake_mxnet.LIBRARIES, "libcublas.so.11": ("cublasNew", "cublasOther", "cublasSgemm_v2")}


@pytest.mark.slow
def test_a_recorder_is_replaced_and_kept_where_that_fails(libmxnet, recorder, tmp_path):
    with pytest.raises(DependencyError, match="MXNet needs 2 functions that the recorder lacks: cublasNew, cublasOther"):
        build(fake_mxnet.make(tmp_path, LACKING), recorder)
    assert sorted(path.name for path in recorder.iterdir()) == sorted([LIBRARY, *fake_mxnet.LIBRARIES])
    (recorder / LIBRARY).write_bytes(b"old")
    build(libmxnet, recorder)
    assert (recorder / LIBRARY).read_bytes()[:4] == b"\x7fELF"


def test_the_command_builds_for_a_libmxnet_that_is_named_and_fails_with_one_line(libmxnet, tmp_path):
    line = [sys.executable, "-m", "tools.gpu_record.build", str(tmp_path / "out")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "1.9.1 that asks nothing of a GPU; in an environment of its own run: pip install mxnet-cu112==1.9.1" in done.stderr
    assert done.stderr.startswith("mxmp: ") and done.stderr.count("\n") == 1
    done = subprocess.run([*line, "--libmxnet", str(libmxnet)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "out" / LIBRARY))
