"""The format of a file of states, read and edited: internals, for tests of what is written and refused."""

import json
import tempfile
from pathlib import Path

import numpy as np

from tests.freeze import freeze


def freeze_saved(save):
    """Return what a method writes to a file of states, but for the loss scale."""
    with tempfile.TemporaryDirectory() as folder:
        fname = str(Path(folder) / "states")
        save(fname)
        header, arrays = read_states(fname)
    del header["extra"]
    return header, freeze(arrays)


def read_states(fname):
    """Return the header and the arrays of a file of states."""
    with np.load(str(fname), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(str(arrays.pop("header"))), arrays


def edit_states(fname, change, more=()):
    """Rewrite a file of states with its header changed in place, and more arrays."""
    header, arrays = read_states(fname)
    change(header)
    with open(fname, "wb") as opened:
        np.savez(opened, header=np.array(json.dumps(header)), **{**arrays, **dict(more)})
