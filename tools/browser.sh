#!/bin/sh
# Installs Chromium and its driver from Debian's packages where they are missing, which takes root.
set -eu
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi
command -v apt-get >/dev/null || {
    echo "mxmp: no chromium and chromedriver on PATH, and no apt-get to install them: install both" >&2
    exit 1
}
echo "Installing chromium and chromium-driver"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq chromium chromium-driver >/dev/null
