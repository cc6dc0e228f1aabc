#!/bin/sh
# Usage: venv.sh FOLDER EXTRAS [PYTHON [BUILD]]
# Makes a virtual environment in FOLDER unless there is a usable one, and installs mxmp[BUILD,EXTRAS] into it, editable;
# BUILD is that of MXNet: cpu, or cu112 for GPUs. With empty EXTRAS it only makes the environment.
# PYTHON is a path, a command or a version like 3.13; without it the first Python from 3.8 to 3.13 is taken: python3,
# then those with which numpy below 1.24 can be had, then later ones.
set -eu
folder=$1 extras=$2 wanted=${3:-} build=${4:-cpu}
case $build in cpu) wheel=mxnet ;; *) wheel=mxnet-$build ;; esac
names="python3 python3.11 python3.10 python3.9 python3.8 python3.12 python3.13 python"
pyenv=${PYENV_ROOT:-${HOME:-}/.pyenv}/versions

fail() {
    echo "mxmp: $1" >&2
    exit 1
}

# Prints the version of a Python that runs; fails for one that does not, like a shim of pyenv.
version() {
    "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null
}

supported() {
    case $(version "$1") in 3.8.* | 3.9.* | 3.10.* | 3.11.* | 3.12.* | 3.13.*) ;; *) return 1 ;; esac
}

# Whether a Python is of a version that may lack its last numbers.
is_version() {
    case $(version "$1"). in "$2".*) ;; *) return 1 ;; esac
}

has_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# Every Python of some names in every folder of PATH, and python3.* among pyenv's versions, one a line.
candidates() {
    for name in "$@"; do
        echo "$PATH" | tr ':' '\n' | while IFS= read -r place; do
            [ ! -x "$place/$name" ] || echo "$place/$name"
        done
    done
    for name in "$@"; do
        for file in "$pyenv"/*/bin/"$name"; do
            case $name in *.*) [ ! -x "$file" ] || echo "$file" ;; esac
        done
    done
}

# Sets $python to the first of $1, one a line, that is supported and of version $2, if that is given; to one that has
# venv where there is a choice. Sets $seen to what runs but does not fit.
find_python() {
    python= seen=
    while IFS= read -r candidate; do
        found=$(version "$candidate") || continue
        seen="$seen, ${candidate##*/} $found"
        supported "$candidate" || continue
        [ -z "$2" ] || is_version "$candidate" "$2" || continue
        python=${python:-$candidate}
        if has_venv "$candidate"; then python=$candidate && return; fi
    done <<LIST
$1
LIST
    seen=${seen#, }
}

number=$wanted # the version that is wanted
case $wanted in
"") ;;
[0-9]*)
    find_python "$(candidates "python$(echo "$wanted" | cut -d. -f1,2)" python3 python)" "$wanted"
    [ -n "$python" ] || fail "PYTHON=$wanted: no such Python from 3.8 to 3.13 on PATH or in $pyenv (found: \
${seen:-none}): install it, or name another one"
    ;;
*)
    python=$wanted
    number=$(version "$python") || fail "PYTHON=$python does not run: name a Python from 3.8 to 3.13"
    supported "$python" || fail "needs Python 3.8 to 3.13, but PYTHON=$python is $number: name another one"
    ;;
esac

if [ -e "$folder" ]; then
    found=$(version "$folder/bin/python") || found="broken"
    supported "$folder/bin/python" ||
        fail "$folder holds no working Python 3.8 to 3.13 (found: $found): remove the folder and try again"
    [ -z "$number" ] || is_version "$folder/bin/python" "$number" || fail "$folder holds Python $found, not $number \
as PYTHON=$wanted asks: remove the folder, or name another one: make VENV=.venv-$number PYTHON=$wanted"
else
    if [ -z "$wanted" ]; then
        # shellcheck disable=SC2086
        find_python "$(candidates $names)" ""
        [ -n "$python" ] || fail "needs Python 3.8 to 3.13, but PATH has ${seen:-no Python}: install one (Debian, \
Ubuntu: apt-get install python3-venv), or name one: make PYTHON=/path/to/python3.11"
    fi
    minor=$(version "$python" | cut -d. -f1,2)
    has_venv "$python" || fail "$python has no venv module: install it (Debian, Ubuntu: apt-get install \
python$minor-venv), or name another Python: make PYTHON=/path/to/python3"
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
if is_version "$folder/bin/python" 3.13; then install --no-deps "$wheel==1.9.1"; fi
