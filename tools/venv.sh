#!/bin/sh
# Usage: venv.sh FOLDER EXTRAS [PYTHON]
# Makes a virtual environment in FOLDER unless there is a usable one, with PYTHON or the first
# Python from 3.8 to 3.11 on PATH, and installs mxmp[EXTRAS] into it, editable.
set -eu
folder=$1 extras=$2 wanted=${3:-}

fail() {
    echo "mxmp: $1" >&2
    exit 1
}

# Prints the version of a Python that runs; fails for one that does not, like a shim of pyenv.
version() {
    "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null
}

supported() {
    case $(version "$1") in 3.8.* | 3.9.* | 3.10.* | 3.11.*) ;; *) return 1 ;; esac
}

has_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# Every python3, python3.11, ... in every folder of PATH, one a line.
candidates() {
    for name in python3 python3.11 python3.10 python3.9 python3.8 python; do
        echo "$PATH" | tr ':' '\n' | while IFS= read -r place; do
            [ ! -x "$place/$name" ] || echo "$place/$name"
        done
    done
}

# Sets $python, to one that has venv where there is a choice, else to any supported one.
find_python() {
    python= seen=
    while IFS= read -r candidate; do
        found=$(version "$candidate") || continue
        seen="$seen, ${candidate##*/} $found"
        supported "$candidate" || continue
        python=${python:-$candidate}
        if has_venv "$candidate"; then python=$candidate && return; fi
    done <<LIST
$(candidates)
LIST
    seen=${seen#, }
    [ -n "$python" ] || fail "needs Python 3.8 to 3.11, but PATH has ${seen:-no Python}: install Python 3.11 \
(Debian 12: apt-get install python3.11-venv), or name one: make PYTHON=/path/to/python3.11"
}

if [ -n "$wanted" ]; then
    python=$wanted
    found=$(version "$python") || fail "PYTHON=$python does not run: name a Python from 3.8 to 3.11"
    supported "$python" || fail "needs Python 3.8 to 3.11, but PYTHON=$python is $found: name another one"
fi

if [ -e "$folder" ] && ! supported "$folder/bin/python"; then
    found=$(version "$folder/bin/python") || found="broken"
    fail "$folder holds no working Python 3.8 to 3.11 (found: $found): remove the folder and try again"
fi

if [ ! -e "$folder" ]; then
    [ -n "$wanted" ] || find_python
    minor=$(version "$python" | cut -d. -f1,2)
    has_venv "$python" || fail "$python has no venv module: install it (Debian, Ubuntu: apt-get install \
python$minor-venv), or name another Python: make PYTHON=/path/to/python3"
    echo "Making $folder with $python ($(version "$python"))"
    "$python" -m venv "$folder"
fi

echo "Installing mxmp[$extras] into $folder (a few minutes, once)"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extras]"
