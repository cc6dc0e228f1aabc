"""tools/gpu_record.sh and `make test-gpu-record`: the environment, and one line where it cannot be had."""

from __future__ import annotations

import shutil

import pytest

from tests.tools.test_venv import ROOT, Machine

FOLDER = ".venv-gpu-record"
# A pip that has no wheel of mxnet-cu112, or is told to install anything else.
NO_WHEEL = """\
case "$*" in
    *--no-deps*mxnet-cu112*) echo 'WARNING: slow'; echo 'ERROR: No matching distribution found' >&2; exit 1 ;;
esac
"""


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    shutil.copy(ROOT / "tools" / "gpu_record.sh", machine.project / "tools")
    for command in ("uname", "grep", "tail", "rm"):
        (machine.path[0] / command).symlink_to(shutil.which(command))
    machine.python = machine.add_python()
    return machine


def make(machine):
    return machine.run("sh", "tools/gpu_record.sh", FOLDER)


def assert_one_line(done, *parts):
    assert done.returncode == 1
    assert done.stderr.startswith("mxmp: ") and done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr


def test_environment_has_the_cuda_wheel_and_not_that_of_cpus(machine):
    assert make(machine).returncode == 0
    wheel, project, tests = machine.installed()
    assert wheel.endswith("--no-deps mxnet-cu112==1.9.1")
    assert project.endswith("--editable .[cu112,demo,gpu-record]")
    assert "pytest-xdist" in tests
    assert "cpu" not in "".join((wheel, project, tests))


def test_environment_without_the_wheel_fails_with_one_line(machine):
    text = machine.python.read_text()
    machine.python.write_text(text.replace("#!/bin/sh\n", f"#!/bin/sh\n{NO_WHEEL}"))
    done = make(machine)
    assert_one_line(
        done, "mxnet-cu112 1.9.1 (0.5 GB) is not to be had", "pip says ERROR: No matching distribution found"
    )
    assert machine.installed() == []


@pytest.mark.parametrize("system", ["Darwin arm64", "Linux aarch64"])
def test_environment_on_a_platform_without_a_wheel_fails_with_one_line(machine, system):
    (machine.path[0] / "uname").unlink()
    (machine.path[0] / "uname").write_text(f"#!/bin/sh\necho {system}\n")
    (machine.path[0] / "uname").chmod(0o755)
    assert_one_line(make(machine), "for Linux on x86-64 only", f"this is {system}")
    assert not (machine.project / FOLDER).exists()


def left_behind(machine, *names):
    folder = machine.project / FOLDER
    (folder / "bin").mkdir(parents=True)
    shutil.copy(machine.python, folder / "bin" / "python")
    for name in ("pyvenv.cfg", "old", *names):
        (folder / name).touch()
    return folder


def test_environment_that_was_left_half_made_is_made_again(machine):
    folder = left_behind(machine)
    assert make(machine).returncode == 0
    assert not (folder / "old").exists()


def test_environment_that_was_made_is_kept(machine):
    folder = left_behind(machine, ".built")
    assert make(machine).returncode == 0
    assert (folder / "old").exists()


def test_folder_that_is_no_environment_is_left_alone(machine):
    folder = machine.project / FOLDER
    folder.mkdir()
    (folder / "mine").touch()
    assert make(machine).returncode == 1
    assert (folder / "mine").exists()


def test_make_fails_where_the_environment_cannot_be_made(machine):
    (machine.path[0] / "make").symlink_to(shutil.which("make"))
    text = machine.python.read_text()
    machine.python.write_text(text.replace("#!/bin/sh\n", f"#!/bin/sh\n{NO_WHEEL}"))
    done = machine.run("make", "test-gpu-record")
    assert done.returncode == 2
    assert done.stderr.startswith("mxmp: the wheel of mxnet-cu112")
    assert not (machine.project / FOLDER / ".built").exists()
