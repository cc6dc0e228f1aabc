"""The format of a file of states, read and edited: internals, for tests of what is written and refused."""

import json

import numpy as np


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
