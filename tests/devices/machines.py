"""Machines made up by a script in the place of nvidia-smi."""

import shlex


def install(folder, monkeypatch, script, cuda=True):
    """Put a shell script first on PATH as nvidia-smi; it gets the fields asked for as $fields. MXNet has CUDA or not."""
    path = folder / "nvidia-smi"
    path.write_text(f'#!/bin/sh\nfields="${{1#--query-gpu=}}"\n[ "$2" = --format=csv,noheader ] || exit 3\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    for module in ("devices.check", "diagnose.machine"):
        monkeypatch.setattr(f"mxmp.{module}.is_for_gpus", lambda: cuda)


def install_cards(folder, monkeypatch, cards, cuda=True):
    """Make a machine with cards, given as (name, compute capability)."""
    lines = [f"echo {shlex.quote(f'{name}, {capability}')}" for name, capability in cards]
    install(folder, monkeypatch, "\n".join(['[ "$fields" = name,compute_cap ] || exit 2', *lines]), cuda)
