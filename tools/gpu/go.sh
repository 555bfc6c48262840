#!/bin/bash
# On the GPU machine, from any folder that has `.gpu` (docs/gpu-status.md):
#   bash .gpu/go.sh first             the parts for the first minutes: 4 to 5, at most 9 min 40 s
#   bash .gpu/go.sh second PART...    further parts, chosen by the first results
# OUT: the folder for the results. DEVICE=cpu: a rehearsal on a machine without a GPU. PYTHON, WORK: the Python, and the
# folder for unpacking.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OUT=${OUT:-/tmp/weft-gpu-out}
mkdir -p "$OUT"
rm -f "$OUT/summary.txt"
# go.py ends every part in time. The timeout ends go.py if it hangs.
timeout -k 2 577 "${PYTHON:-python3}" "$here/go.py" "$@" > "$OUT/go.log" 2>&1
status=$?
[ "$status" -eq 0 ] || { echo "go.py ended with status $status:"; tail -n 12 "$OUT/go.log" | cut -c1-300; }
echo "##### SUMMARY"
summary=$OUT/summary.txt
if [ ! -f "$summary" ]; then echo "(nothing)"
elif [ "$(wc -c < "$summary")" -lt 11000 ]; then cat "$summary"
else head -c 7400 "$summary"; echo; echo "[... the rest is in summary.txt ...]"; tail -c 3400 "$summary"; fi
exit "$status"
