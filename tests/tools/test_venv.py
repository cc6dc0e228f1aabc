"""The script that makes environments: which Python it takes, and its one line where there is none."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
COMMANDS = ("sh", "tr", "cut", "touch", "cp", "mkdir", "chmod", "uname", "grep", "tail", "rm", "make")

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


class Machine:
    """A project folder, and a PATH with stand-ins for Pythons alone; each Python is by a place in the machine."""

    def __init__(self, folder):
        self.folder, self.project, self.log = folder, folder / "project", folder / "pip.log"
        (self.project / "tools").mkdir(parents=True)
        for name in ("Makefile", "setup.py", "tools/venv.sh"):
            shutil.copy(ROOT / name, self.project / name)
        for command in COMMANDS:
            self.program(f"bin/{command}", f'#!/bin/sh\nexec {shutil.which(command)} "$@"\n')

    def program(self, place, text="#!/bin/sh\n"):
        file = self.folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
        return file

    def python(self, place="bin/python3", version="3.11.7", venv=True):
        answer = f"echo {version}" if version else "echo 'pyenv: command not found' >&2; exit 127"
        return self.program(place, PYTHON.format(version=answer, venv=int(not venv), log=self.log))

    def run(self, *command):
        # Without what the make that runs these tests sets.
        outer = ("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PYTHON", "VENV", "ARGS", "PYENV_ROOT")
        environ = {name: value for name, value in os.environ.items() if name not in outer}
        environ.update(PATH=f"{self.folder}/bin:{self.folder}/later", HOME=str(self.folder))
        return subprocess.run(command, cwd=self.project, env=environ, capture_output=True, text=True)

    def venv(self, *wanted):
        return self.run("sh", "tools/venv.sh", ".venv", "demo", *wanted)

    def installed(self):
        """Return what pip was told since the last call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.write_text("")
        return lines


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def assert_one_line(done, *parts, code=1):
    assert (done.returncode, done.stdout) == (code, "")
    line = done.stderr.splitlines()[0] if code == 2 else done.stderr  # make adds a line of its own
    assert line.startswith("mxmp: ") and line.rstrip("\n").count("\n") == 0
    assert all(part in line for part in parts), line


@pytest.mark.parametrize("version", ["3.8.18", "3.9.0", "3.10.13", "3.11.7", "3.12.1", "3.13.0"])
def test_venv_takes_python3_and_installs_the_extras(version, machine):
    machine.python(version=version)
    done = machine.venv()
    assert done.returncode == 0 and f"bin/python3 ({version})" in done.stdout
    first, *rest = machine.installed()
    assert first.endswith("--editable .[cpu,demo]")
    assert [line.endswith("--no-deps mxnet==1.9.1") for line in rest] == [True] * version.startswith("3.13")


@pytest.mark.parametrize("version", ["3.7.16", "3.14.0", "3.1.3", "4.8.1", "2.7.18", None, "3.11.7 without venv"])
def test_venv_refuses_other_pythons_in_one_line(version, machine):
    machine.python("bin/python")
    assert_one_line(machine.venv(), "no python3 that runs, is from 3.8 to 3.13 and has venv: install one", "PYTHON=")
    machine.python(version=version, venv=version != "3.11.7 without venv")
    assert_one_line(machine.venv(), "(Debian, Ubuntu: apt-get install python3 python3-venv)")
    assert not (machine.project / ".venv").exists()


@pytest.mark.parametrize(
    "wanted, place, version",
    [
        ("", "later/python3", "3.9.1"),
        ("3.12", "later/python3.12", "3.12.1"),
        ("3.13", ".pyenv/versions/3.13.1/bin/python3.13", "3.13.1"),
        ("3.13.1", ".pyenv/versions/3.13.1/bin/python3.13", "3.13.1"),
        ("python3.10", "later/python3.10", "3.10.13"),
        ("{folder}/mine/python", "mine/python", "3.8.2"),
    ],
)
def test_venv_finds_the_python_that_a_shim_of_the_same_name_hides(wanted, place, version, machine):
    for name in ("python3", "python3.12", "python3.13", "python3.10"):
        machine.python(f"bin/{name}", version=None)
    machine.python(".pyenv/versions/3.13.0/bin/python3.13", "3.13.0" if wanted == "3.13.1" else None)
    file = machine.python(place, version)
    assert f"with {file} ({version})" in machine.venv(wanted.format(folder=machine.folder)).stdout


def test_venv_refuses_a_folder_of_another_python(machine):
    machine.python()
    file = machine.python("bin/python3.13", "3.13.0")
    assert machine.venv().returncode == machine.venv("3.11").returncode == 0
    for wanted, number in (("3.13", "3.13"), (str(file), "3.13.0")):
        how = f"make VENV=.venv-{number} PYTHON={wanted}"
        assert_one_line(machine.venv(wanted), f".venv holds no Python {number} (found: 3.11.7)", how)
    shutil.rmtree(machine.project / ".venv" / "bin")
    assert_one_line(machine.venv(), ".venv holds no Python 3.8 to 3.13 (found: none): remove it")


def test_make_installs_once_for_each_target_and_again_when_setup_changes(machine):
    machine.python()
    assert machine.run("make", "demo").returncode == machine.run("make", "demo").returncode == 0
    assert len(machine.installed()) == 1
    assert machine.run("make", "test").returncode == 0
    assert machine.installed()[0].endswith("--editable .[cpu,test]")
    stamp = (machine.project / ".venv" / ".demo").stat().st_mtime
    os.utime(machine.project / "setup.py", (stamp + 10, stamp + 10))
    machine.run("make", "demo")
    assert len(machine.installed()) == 1
