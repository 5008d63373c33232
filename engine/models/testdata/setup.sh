#!/usr/bin/env bash
# Makes a Python environment with the hub library in OUT, for the tests that
# share a cache with it. Runs once.
set -euo pipefail
out=$1
[ -f "$out/done" ] && exit 0
mkdir -p "$(dirname "$out")"
python3 -m venv "$out"
"$out/bin/pip" install --quiet --disable-pip-version-check huggingface_hub==2.4.0
touch "$out/done"
