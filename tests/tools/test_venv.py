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
        self.home = folder / "home"
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
        return self.write_python(place / name, version, venv)

    def add_pyenv(self, version):
        """Add a Python to pyenv's, and a shim to PATH, which does not run."""
        name = "python" + version.rpartition(".")[0]
        self.add_python(name, version=None)
        place = self.home / ".pyenv" / "versions" / version / "bin"
        place.mkdir(parents=True)
        self.write_python(place / "python3", version)
        return self.write_python(place / name, version)

    def write_python(self, file, version, venv=True):
        answer = f"echo {version}" if version else SHIM
        file.write_text(PYTHON.format(version=answer, venv=0 if venv else 1, log=self.log))
        file.chmod(0o755)
        return file

    def run(self, *command):
        # Of the make that runs these tests.
        outer = ("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PYTHON", "VENV", "ARGS", "PYENV_ROOT")
        environ = {name: value for name, value in os.environ.items() if name not in outer}
        environ["PATH"] = os.pathsep.join(map(str, self.path))
        environ["HOME"] = str(self.home)
        return subprocess.run(command, cwd=self.project, env=environ, capture_output=True, text=True)

    def venv(self, *wanted):
        return self.run("sh", "tools/venv.sh", ".venv", "demo", *wanted)

    def installed(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


def assert_one_line(done, *parts):
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("mxmp: ") and done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize("version", ["3.8.18", "3.9.0", "3.10.13", "3.11.7", "3.12.1"])
def test_venv_takes_a_supported_python_and_installs_the_extras(machine, version):
    machine.add_python(version=version)
    done = machine.venv()
    assert done.returncode == 0, done.stderr
    assert version in done.stdout
    assert (machine.project / ".venv" / "bin" / "python").exists()
    (line,) = machine.installed()
    assert line.endswith("--editable .[cpu,demo]")


def test_venv_installs_mxnet_by_itself_on_python_3_13(machine):
    machine.add_python(version="3.13.0")
    assert machine.venv().returncode == 0
    first, second = machine.installed()
    assert first.endswith("--editable .[cpu,demo]")
    assert second.endswith("--no-deps mxnet==1.9.1")


@pytest.mark.parametrize("version", ["3.7.16", "3.14.0", "3.1.3", "4.8.1", "2.7.18"])
def test_venv_refuses_other_pythons_in_one_line(machine, version):
    machine.add_python(version=version)
    assert_one_line(machine.venv(), "3.8 to 3.13", f"PATH has python3 {version}: install one", "PYTHON=")


def test_venv_without_any_python_says_what_to_install(machine):
    assert_one_line(machine.venv(), "PATH has no Python: install one")


def test_venv_skips_names_that_do_not_run_and_versions_that_do_not_fit(machine):
    machine.add_python("python3", version="3.14.0")
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


@pytest.mark.parametrize(("version", "part"), [("3.14.0", "is 3.14.0"), (None, "does not run")])
def test_venv_refuses_a_named_python_that_does_not_do(machine, version, part):
    machine.add_python("python3")
    assert_one_line(machine.venv(str(machine.add_python("mine", version=version))), part)


def test_venv_takes_python3_where_it_fits_and_then_one_that_mxnet_imports_on(machine):
    newest = machine.add_python("python3.13", version="3.13.0")
    other = machine.add_python("python3.9", version="3.9.18")
    python3 = machine.add_python("python3", version="3.12.1")
    for file in (python3, other, newest):
        assert f"with {file} " in machine.venv().stdout
        shutil.rmtree(machine.project / ".venv")
        file.unlink()


def test_venv_without_a_fitting_python_on_path_takes_one_of_pyenv(machine):
    machine.add_python("python3", version="3.14.0")
    file = machine.add_pyenv("3.12.1")
    assert f"with {file} (3.12.1)" in machine.venv().stdout


def test_venv_takes_the_command_that_is_named(machine):
    machine.add_python("python3")
    machine.add_python("python3.10", version="3.10.13")
    assert "with python3.10 (3.10.13)" in machine.venv("python3.10").stdout


@pytest.mark.parametrize("wanted", ["3.13", "3.13.0"])
def test_venv_takes_the_version_that_is_named_from_path(machine, wanted):
    machine.add_python("python3")
    machine.add_python("python3.1", version="3.1.3")
    file = machine.add_python("python3.13", version="3.13.0")
    assert f"with {file} (3.13.0)" in machine.venv(wanted).stdout


@pytest.mark.parametrize("wanted", ["3.13", "3.13.1"])
def test_venv_takes_the_version_that_is_named_from_pyenv(machine, wanted):
    machine.add_python("python3")
    machine.add_pyenv("3.12.1")
    file = machine.add_pyenv("3.13.1")
    assert f"with {file} (3.13.1)" in machine.venv(wanted).stdout


def test_venv_takes_a_python3_of_the_version_that_is_named(machine):
    file = machine.add_python("python3", version="3.12.1")
    assert f"with {file} (3.12.1)" in machine.venv("3.12").stdout


def test_venv_without_the_version_that_is_named_says_where_it_looked(machine):
    machine.add_python("python3")
    machine.add_python("python3.13", version=None)
    versions = machine.home / ".pyenv" / "versions"
    assert_one_line(machine.venv("3.13"), "PYTHON=3.13: no such Python", f"on PATH or in {versions} (found: python3 3.11.7)")
    machine.add_python("python3.13", version="3.13.0")
    assert_one_line(machine.venv("3.13.1"), "PYTHON=3.13.1: no such Python", "(found: python3.13 3.13.0, python3 3.11.7)")
    machine.add_python("python3.14", version="3.14.0")
    assert_one_line(machine.venv("3.14"), "PYTHON=3.14: no such Python from 3.8 to 3.13", "(found: python3.14 3.14.0,")


def test_venv_refuses_an_environment_of_another_python_than_the_one_named(machine):
    file = machine.add_python("python3.13", version="3.13.0")
    machine.add_python("python3")
    machine.venv()
    for wanted, number in (("3.13", "3.13"), (str(file), "3.13.0")):
        assert_one_line(
            machine.venv(wanted),
            f".venv holds Python 3.11.7, not {number} as PYTHON={wanted} asks",
            f"make VENV=.venv-{number} PYTHON={wanted}",
        )
    assert machine.venv("3.11").returncode == 0


def test_venv_without_extras_makes_the_environment_alone(machine):
    machine.add_python()
    assert machine.run("sh", "tools/venv.sh", ".venv", "").returncode == 0
    assert (machine.project / ".venv" / "bin" / "python").exists()
    assert machine.installed() == []


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
    assert done.stderr.startswith("mxmp: needs Python 3.8 to 3.13")
    assert not (machine.project / ".venv").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_make_keeps_a_second_environment(machine):
    machine.add_python()
    machine.add_pyenv("3.13.0")
    (machine.path[0] / "make").symlink_to(shutil.which("make"))
    second = ("make", "test", "VENV=.venv-3.13", "PYTHON=3.13")
    assert machine.run("make", "test").returncode == 0
    for _ in range(2):
        done = machine.run(*second)
        assert done.returncode == 0, done.stderr
    assert len(machine.installed()) == 3  # and MXNet by itself
    done = machine.run("make", "test", "PYTHON=3.13")
    assert done.returncode == 2
    assert done.stderr.startswith("mxmp: .venv holds Python 3.11.7, not 3.13")
