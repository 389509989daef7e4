#!/usr/bin/env bash
# Installs Node.js and npm from Debian's packages where they are missing: they check the pages' modules.
set -euo pipefail
command -v npm >/dev/null && exit 0
if ! command -v apt-get >/dev/null; then
    echo "checking the pages' modules needs npm on the PATH: please install Node.js" >&2
    exit 1
fi
echo "npm is missing: installing Node.js for the whole system by apt-get" >&2
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends nodejs npm
