#!/bin/sh
# Usage: venv.sh FOLDER EXTRAS [PYTHON [BUILD]]
# Makes a virtual environment in FOLDER, unless there is one, and installs mxmp[BUILD,EXTRAS] into it, editable; BUILD is
# that of MXNet: cpu, or cu112 for GPUs. With empty EXTRAS it only makes the environment. PYTHON is a path, a command or
# a version like 3.13, which is looked for on PATH and among pyenv's; default: python3.
set -eu
folder=$1 extras=$2 wanted=${3:-} build=${4:-cpu}
case $build in cpu) wheel=mxnet ;; *) wheel=mxnet-$build ;; esac

fail() {
    echo "mxmp: $1" >&2
    exit 1
}

# Prints the version of a Python that runs: a name may be a shim of pyenv, which does not.
version() {
    "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null
}

# Whether a Python is one from 3.8 to 3.13 that has venv, and of version $2, if that is given.
fits() {
    case $(version "$1"). in 3.8.* | 3.9.* | 3.10.* | 3.11.* | 3.12.* | 3.13.*) ;; *) return 1 ;; esac
    case $(version "$1"). in "${2:+$2.}"*) ;; *) return 1 ;; esac
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# Every place of a command, one a line: the first may be a shim of pyenv that hides one that runs.
places() {
    case $1 in
    */*) echo "$1" ;;
    *) for place in $(echo "$PATH:" | tr ':' '\n') "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$2"*/bin; do echo "$place/$1"; done ;;
    esac
}

case $wanted in
[0-9]*) name=python$(echo "$wanted" | cut -d. -f1,2) number=$wanted ;;
*) name=${wanted:-python3} number= ;;
esac
if [ -e "$folder" ]; then
    found=$(version "$folder/bin/python") || found=none
    [ -z "$wanted" ] || number=${number:-$(version "$wanted")} || fail "PYTHON=$wanted does not run"
    fits "$folder/bin/python" "$number" || fail "$folder holds no Python ${number:-3.8 to 3.13} (found: $found): remove \
it, or name another folder: make VENV=.venv-${number:-new}${wanted:+ PYTHON=$wanted}"
else
    python=
    for each in $(places "$name" "${number:-none}"); do
        if fits "$each" "$number"; then python=$each && break; fi
    done
    [ -n "$python" ] || fail "no $name that runs, is from 3.8 to 3.13 and has venv: install one (Debian, Ubuntu: apt-get \
install python3 python3-venv), or name another: make PYTHON=3.11, or PYTHON=/path/to/python"
    echo "Making $folder with $python ($(version "$python"))"
    "$python" -m venv "$folder"
fi
[ -n "$extras" ] || exit 0

install() {
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

echo "Installing mxmp[$build,$extras] into $folder (a few minutes, once)"
install --editable ".[$build,$extras]"
# MXNet asks for numpy below 2, of which there is no wheel for Python 3.13 (setup.py).
if fits "$folder/bin/python" 3.13; then install --no-deps "$wheel==1.9.1"; fi
