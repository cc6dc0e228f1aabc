"""Reads damaged copies of files of arrays, of each file in a process of its own, with little memory.

Usage: damaged_files.py SEED COUNT, and files on stdin, one a line: prints ``{"loaded": ..., "refused": ..., "bad": [...]}``
for each, or ``{"died": ...}``.
"""

import itertools
import json
import os
import random
import resource
import signal
import sys

import mxmp  # noqa: F401  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx

from mxmp.errors import CheckpointError
from mxmp.symbol import load_params

ROOM = 1 << 30  # bytes of addresses beyond what the process has


def damaged(whole, rng):
    """Return a file with one to three bytes changed, cut off, or with a piece taken out or put in."""
    data = bytearray(whole)
    kind = rng.randrange(6)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    place = rng.randrange(len(data))
    if kind == 1:
        del data[place : place + rng.randrange(1, 16)]
    elif kind == 2:
        data[place:place] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 16)))
    else:
        for _ in range(kind - 2):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(data)


def try_to_load(file):
    """Return what becomes of a file: loaded, refused, or the error that should not have been."""
    try:
        for array in itertools.chain(*(params.values() for params in load_params(file))):
            (array if array.stype == "default" else array.data).asnumpy()  # as dense ones they may need any memory
    except CheckpointError as e:
        return "refused" if file in str(e) and "\n" not in str(e) and len(str(e)) < 500 else f"unclear: {e}"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return "loaded"


def try_damaged(file, seed, count):
    """Print what became of damaged copies of a file, in a process with little more memory than it has."""
    with open(file, "rb") as stream:
        whole = stream.read()
    if whole[24:28] == bytes([0xCA, 0xFA, 0x93, 0xF9]):
        mx.npx.set_np()
    rng, copy = random.Random(seed), f"{file}.damaged"
    assert try_to_load(file) == "loaded"
    with open("/proc/self/statm") as stream:
        size = int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
    found = []
    for _ in range(count):
        with open(copy, "wb") as stream:
            stream.write(damaged(whole, rng))
        found.append(try_to_load(copy))
    bad = [each for each in enumerate(found) if each[1] not in ("loaded", "refused")]
    print(json.dumps({"loaded": found.count("loaded"), "refused": found.count("refused"), "bad": bad}), flush=True)


def main(seed, count):
    """Answer each line in a copy of this process, which has imported MXNet and done nothing else."""
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if not child:
            signal.alarm(120)  # what hangs dies
            try_damaged(line.rstrip("\n"), seed, count)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            print(json.dumps({"died": status}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
