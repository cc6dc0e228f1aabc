#!/bin/sh
# Usage: gpu_record.sh FOLDER [PYTHON]
# Makes a virtual environment in FOLDER with mxmp, MXNet for GPUs (mxnet-cu112 1.9.1), what the examples need, pytest
# and what tools/gpu_record needs. No GPU and no CUDA. One that was left half made is made again.
set -eu
folder=$1 wanted=${2:-}

fail() {
    echo "mxmp: $1" >&2
    exit 1
}

case $(uname -sm) in
"Linux x86_64") ;;
*) fail "mxnet-cu112 1.9.1 is for Linux on x86-64 only, this is $(uname -sm): what a GPU is asked cannot be recorded" ;;
esac

if [ -e "$folder/pyvenv.cfg" ] && [ ! -e "$folder/.built" ]; then
    rm -rf "$folder"
fi
sh tools/venv.sh "$folder" "" "$wanted"

install() {
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

# First, and by itself, what may not be to be had.
if ! reason=$(install --no-deps mxnet-cu112==1.9.1 2>&1); then
    reason=$(echo "$reason" | grep ERROR | tail -n 1)
    fail "the wheel of mxnet-cu112 1.9.1 (0.5 GB) is not to be had, so what a GPU is asked cannot be recorded here: \
pip says ${reason:-nothing}"
fi
sh tools/venv.sh "$folder" demo,gpu-record "$wanted" cu112
install 'pytest>=7.4' 'pytest-timeout>=2.1' 'pytest-xdist>=3.3'
