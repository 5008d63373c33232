#!/usr/bin/env bash
# Installs what building and testing the dashboard needs into OUT, in the versions
# and with the checksums of package-lock.json, and Debian's Chromium. Runs again
# only when the lock file has changed. Needs Node 20 or newer.
set -euo pipefail
out=$1
web=$(cd "$(dirname "$0")" && pwd)
want=$(cat "$0" "$web/package-lock.json" | cksum)
if [ ! -x /usr/bin/chromium ]; then
  apt-get update -q >/dev/null
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium >/dev/null
fi
[ "$(cat "$out/done" 2>/dev/null)" = "$want" ] && exit 0
rm -rf "$out"
mkdir -p "$out"
cp "$web/package.json" "$web/package-lock.json" "$out"
npm ci --prefix "$out" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel error
echo "$want" >"$out/done"
