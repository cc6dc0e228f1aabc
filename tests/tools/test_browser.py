"""tools/browser.sh, on machines that have programs of our own in the place of Debian's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.display import browser

ROOT = Path(__file__).resolve().parents[2]


def program(folder, name, code="exit 0"):
    (folder / name).write_text(f"#!/bin/sh\n{code}\n")
    (folder / name).chmod(0o755)


def run(folder):
    """Run the script where these programs are all that there is."""
    command = [shutil.which("sh"), "tools/browser.sh"]
    return subprocess.run(command, cwd=ROOT, env={"PATH": str(folder)}, capture_output=True, text=True)


def test_nothing_is_installed_where_both_are_there(tmp_path):
    program(tmp_path, "chromium")
    program(tmp_path, "chromedriver")
    program(tmp_path, "apt-get", "exit 7")
    assert (run(tmp_path).returncode, run(tmp_path).stdout) == (0, "")


@pytest.mark.parametrize("there", [None, "chromium", "chromedriver"])
def test_what_is_missing_is_installed(tmp_path, there):
    if there:
        program(tmp_path, there)
    program(tmp_path, "apt-get", f'echo "$*" >> {tmp_path}/asked')
    assert run(tmp_path).returncode == 0
    assert (tmp_path / "asked").read_text().splitlines() == [
        "update -qq",
        "install -y -qq chromium chromium-driver",
    ]


def test_an_install_that_fails_fails(tmp_path):
    program(tmp_path, "apt-get", "exit 100")
    assert run(tmp_path).returncode == 100


def test_without_packages_it_says_what_to_do(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 1 and done.stderr.endswith("no apt-get to install them: install both\n")


@pytest.mark.parametrize("required, outcome", [(None, pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_browser_tests_are_skipped_without_a_browser_unless_it_is_required(monkeypatch, required, outcome):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("MXMP_REQUIRE_BROWSER", raising=False)
    if required:
        monkeypatch.setenv("MXMP_REQUIRE_BROWSER", required)
    with pytest.raises(outcome, match="tools/browser.sh installs them"):
        browser.find()
