#!/bin/sh
# Usage: horovod.sh FOLDER [PYTHON]
# Makes a virtual environment in FOLDER with mxmp, MXNet for CPUs, what the examples need, pytest and Horovod,
# which is built for that MXNet from source: cmake and a C++ compiler, and some minutes, once.
set -eu
folder=$1 wanted=${2:-}

for program in cmake c++; do
    command -v $program >/dev/null || {
        echo "mxmp: Horovod is built with $program: install it (Debian, Ubuntu: apt-get install cmake g++)" >&2
        exit 1
    }
done

sh tools/venv.sh "$folder" demo "$wanted"
"$folder/bin/python" -c 'import sys; sys.exit(sys.version_info >= (3, 12))' || {
    echo "mxmp: Horovod's build imports MXNet without mxmp, which Python 3.12 and later cannot: PYTHON=3.11 names another" >&2
    exit 1
}

install() {
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

# Horovod is built against the MXNet that is there: no isolation from it, and no wheel of an earlier build.
# Its release of 2023 is built with setuptools of that time.
install 'setuptools<70' wheel packaging 'pytest>=7.4' 'pytest-timeout>=2.1'
echo "Building Horovod in $folder (some minutes, once)"
HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
    HOROVOD_WITHOUT_PYTORCH=1 install --no-build-isolation --no-cache-dir horovod==0.28.1
