#!/usr/bin/env bash
# Installs the public client libraries and agents that the tests point at the
# server into OUT, in the versions and with the checksums of the lock files in
# sdk/. Runs again only when one of them has changed. Needs Python 3.11 or
# newer and Node 20 or newer.
set -euo pipefail
out=$1
sdk=$(dirname "$0")/sdk
want=$(cat "$0" "$sdk/requirements.txt" "$sdk/package.json" "$sdk/package-lock.json" | cksum)
[ "$(cat "$out/done" 2>/dev/null)" = "$want" ] && exit 0
rm -rf "$out"
mkdir -p "$out"
python3 -m venv "$out/python"
"$out/python/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$sdk/requirements.txt"
cp "$sdk/package.json" "$sdk/package-lock.json" "$out"
DISABLE_TELEMETRY=1 npm ci --prefix "$out" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel error
echo "$want" >"$out/done"
