#!/bin/sh
# Prints the version of what is built: what git says after the latest tag vX.Y.Z,
# or before there is one 0.1.0-dev+COMMITS.COMMIT. "dirty" marks changes that are
# not committed; without git it is 0.1.0-dev.
cd "$(dirname "$0")/.." || exit 1
if v=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null); then
  echo "${v#v}"
elif commit=$(git rev-parse --short=8 HEAD 2>/dev/null); then
  git diff-index --quiet HEAD -- 2>/dev/null || dirty=.dirty
  echo "0.1.0-dev+$(git rev-list --count HEAD).$commit${dirty:-}"
else
  echo 0.1.0-dev
fi
