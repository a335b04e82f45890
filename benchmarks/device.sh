#!/usr/bin/env bash
# Everything that wants the GPU, in one go: builds what ships, verifies it and writes receipts, runs the device tests, times it all.
# Usage: benchmarks/device.sh [FOLDER]    receipts, figures, plot and logs go there (default build/device)
# PYTHON=... picks the interpreter; flashgen need not be installed. A short report comes last; exit 1 when anything was wrong.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/device}
python=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$out"
report=$out/report.txt
: > "$report"
failed=0

step() { # NAME SECONDS COMMAND...: its output to NAME.log, its last lines to the report
  local name=$1 limit=$2 began=$SECONDS
  shift 2
  timeout "$limit" "$@" > "$out/$name.log" 2>&1
  local status=$?
  [ $status = 0 ] || failed=1
  { echo "== $name: exit $status, $((SECONDS - began)) s"; grep -aE '^(FAILED|ERROR)|WRONG' "$out/$name.log" | head -40; tail -n 3 "$out/$name.log"; } >> "$report"
}

timed() { # NAME OPTIONS...: a bench's figures to NAME.json, its plot to NAME.png, its table to standard output
  local file=$out/$1
  shift
  "$python" -m flashgen bench "$@" --json --backend cudnn --plot "$file.png" > "$file.json" && "$python" benchmarks/table.py "$file.json"
}
export -f timed
export out python

step build 600 "$python" -m flashgen build -o "$out/kernels"
step verify 600 "$python" -m flashgen verify --built "$out/kernels" --receipts "$out/verified.json"
step host 60 "$python" -m flashgen bench --host
step tests 900 "$python" -m pytest -q tests/device
step bench 300 bash -c 'timed forward'
step backward 300 bash -c 'timed backward --backward --deterministic'
cat "$report" "$out/host.log" "$out/bench.log" "$out/backward.log"
exit $failed
