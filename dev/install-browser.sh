#!/usr/bin/env bash
# Installs Chromium from Debian's packages, for the tests of the page.
set -euo pipefail
command -v chromium >/dev/null && exit 0
if ! command -v apt-get >/dev/null; then
    echo "the tests of the page need Chromium as 'chromium' on the PATH: please install it" >&2
    exit 1
fi
echo "chromium is missing: installing it for the whole system by apt-get" >&2
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends chromium
