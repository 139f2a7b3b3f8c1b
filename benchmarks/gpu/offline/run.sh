#!/bin/sh
# On the machine with the GPU: OUT=FOLDER sh benchmarks/gpu/offline/run.sh [OPTION OF first.py …]. See README.md.
set -eu
: "${OUT:?name the folder for the results in OUT}"
root=$(cd "$(dirname "$0")/../../.." && pwd)
python=${PYTHON:-python3}
site=${SITE:-$OUT/site}
cd "$root"
mkdir -p "$OUT"

# a second run finds the packages of the first
if [ -d .whl ] && [ ! -e "$site/.ready" ]; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --upgrade --target "$site" .whl/*.whl
    touch "$site/.ready"
fi
export PYTHONPATH="$site:$root${PYTHONPATH:+:$PYTHONPATH}" PATH="$site/bin:$PATH" PYTHONUNBUFFERED=1
# gigabytes of libraries, which the first import would read bit by bit
libraries=$("$python" -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("torch").origin).parents[1])')
find "$libraries/torch/lib" "$libraries/nvidia" -name '*.so*' -size +1M -exec cat {} + >/dev/null 2>&1 &
[ ! -e .whl/commit.txt ] || set -- --commit "$(cat .whl/commit.txt)" "$@"
code=0
"$python" benchmarks/gpu/first.py --out "$OUT" "$@" || code=$?
cat "$OUT/first.md"
exit "$code"
