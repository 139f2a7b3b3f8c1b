#!/bin/sh
# Fill .whl/ of this checkout with what the kit needs on a machine without network: see README.md.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
"${PYTHON:-python3}" "$here/pins.py" fetch "$root/.whl"
git -C "$root" describe --always --dirty >"$root/.whl/commit.txt"
du -sh "$root/.whl"
