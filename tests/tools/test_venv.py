"""tools/venv.sh and the Makefile: which Python they take, and what they say where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
COMMANDS = ("sh", "tr", "cut", "touch", "cp", "mkdir", "chmod")

# Answers what venv.sh asks a Python; "-m venv" makes a folder with a copy, "-m pip" leaves a line in a log.
PYTHON = """\
#!/bin/sh
case "$*" in
    *version_info*) {version} ;;
    *ensurepip*) exit {venv} ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip "*) echo "$*" >> {log} ;;
esac
"""
SHIM = "echo 'pyenv: command not found' >&2; exit 127"


@pytest.fixture
def machine(tmp_path):
    """A machine with a project folder and a PATH that holds stand-ins for Pythons alone."""
    return Machine(tmp_path)


class Machine:
    def __init__(self, folder):
        self.log = folder / "pip.log"
        self.project = folder / "project"
        self.path = [folder / "bin"]
        (self.project / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "venv.sh", self.project / "tools")
        shutil.copy(ROOT / "Makefile", self.project)
        (self.project / "setup.py").touch()
        self.path[0].mkdir()
        for command in COMMANDS:
            (self.path[0] / command).symlink_to(shutil.which(command))

    def add_python(self, name="python3", version="3.11.7", venv=True, folder="bin"):
        place = self.path[0].parent / folder
        place.mkdir(exist_ok=True)
        if place not in self.path:
            self.path.append(place)
        file = place / name
        answer = f"echo {version}" if version else SHIM
        file.write_text(PYTHON.format(version=answer, venv=0 if venv else 1, log=self.log))
        file.chmod(0o755)
        return file

    def run(self, *command):
        outer = (
            "MAKEFLAGS",
            "MAKEOVERRIDES",
            "MAKELEVEL",
            "PYTHON",
            "ARGS",
        )  # of the make that runs these tests
        environ = {name: value for name, value in os.environ.items() if name not in outer}
        environ["PATH"] = os.pathsep.join(map(str, self.path))
        return subprocess.run(command, cwd=self.project, env=environ, capture_output=True, text=True)

    def venv(self, *wanted):
        return self.run("sh", "tools/venv.sh", ".venv", "cpu,demo", *wanted)

    def installed(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


def assert_one_line(done, *parts):
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("mxmp: ") and done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize("version", ["3.8.18", "3.9.0", "3.10.13", "3.11.7"])
def test_venv_takes_a_supported_python_and_installs_the_extras(machine, version):
    machine.add_python(version=version)
    done = machine.venv()
    assert done.returncode == 0, done.stderr
    assert version in done.stdout
    assert (machine.project / ".venv" / "bin" / "python").exists()
    (line,) = machine.installed()
    assert line.endswith("--editable .[cpu,demo]")


@pytest.mark.parametrize("version", ["3.7.16", "3.12.1", "3.13.0", "2.7.18"])
def test_venv_refuses_other_pythons_in_one_line(machine, version):
    machine.add_python(version=version)
    assert_one_line(machine.venv(), "3.8 to 3.11", f"PATH has python3 {version}: install Python 3.11", "PYTHON=")


def test_venv_without_any_python_says_what_to_install(machine):
    assert_one_line(machine.venv(), "PATH has no Python: install Python 3.11")


def test_venv_skips_names_that_do_not_run_and_versions_that_do_not_fit(machine):
    machine.add_python("python3", version="3.12.1")
    machine.add_python("python3.11", version=None)
    file = machine.add_python("python3.9", version="3.9.18")
    done = machine.venv()
    assert done.returncode == 0, done.stderr
    assert f"with {file} (3.9.18)" in done.stdout


def test_venv_finds_a_python_that_a_broken_one_of_the_same_name_hides(machine):
    machine.add_python("python3.11", version=None)
    file = machine.add_python("python3.11", folder="later")
    assert f"with {file} " in machine.venv().stdout


def test_venv_prefers_a_python_that_has_the_venv_module(machine):
    machine.add_python("python3", venv=False)
    file = machine.add_python("python3.8", version="3.8.10")
    assert f"with {file} " in machine.venv().stdout


def test_venv_without_the_venv_module_names_the_package(machine):
    machine.add_python(version="3.10.13", venv=False)
    assert_one_line(machine.venv(), "no venv module", "apt-get install python3.10-venv")
    assert not (machine.project / ".venv").exists()


def test_venv_takes_the_python_that_is_named(machine):
    machine.add_python("python3")
    file = machine.add_python("mine", version="3.9.1", folder="elsewhere")
    assert f"with {file} (3.9.1)" in machine.venv(str(file)).stdout


@pytest.mark.parametrize(("version", "part"), [("3.12.1", "is 3.12.1"), (None, "does not run")])
def test_venv_refuses_a_named_python_that_does_not_do(machine, version, part):
    machine.add_python("python3")
    assert_one_line(machine.venv(str(machine.add_python("mine", version=version))), part)


def test_venv_refuses_a_folder_without_a_working_python(machine):
    machine.add_python()
    (machine.project / ".venv").mkdir()
    assert_one_line(machine.venv(), ".venv holds no working Python", "remove the folder")


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_make_installs_once_for_each_target_and_again_when_setup_changes(machine):
    machine.add_python()
    (machine.path[0] / "make").symlink_to(shutil.which("make"))
    for _ in range(2):
        assert machine.run("make", "demo").returncode == 0
    assert len(machine.installed()) == 1
    assert machine.run("make", "test").returncode == 0
    assert machine.installed()[1].endswith("--editable .[cpu,test]")
    stamp = (machine.project / ".venv" / ".demo").stat().st_mtime
    os.utime(machine.project / "setup.py", (stamp + 10, stamp + 10))
    machine.run("make", "demo")
    assert len(machine.installed()) == 3


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_make_fails_where_venv_fails(machine):
    (machine.path[0] / "make").symlink_to(shutil.which("make"))
    done = machine.run("make", "demo")
    assert done.returncode == 2
    assert done.stderr.startswith("mxmp: needs Python 3.8 to 3.11")
    assert not (machine.project / ".venv").exists()
