#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a machine of many cores makes for Adrenos without a phone, in calls of some minutes that go on where the last one stopped.
#
#   OUT=results bash benchmarks/adreno_machine.sh rows 560     # rows of adreno_networks.json, all of them anew
#   OUT=results bash benchmarks/adreno_machine.sh tune 560     # records of tuning_logs/, priced by Mesa's instructions
#
# A call ends after so many seconds, and copies what there is to $OUT: adreno_networks.json, and a file of records for
# each Adreno. What is between calls stays in .cache/adreno_machine (STATE names another folder); on a new machine SEED
# names the $OUT of an earlier call. PYTHON is the interpreter (python), JOBS the processes (the cores less three), and
# SMARTMEM_MESA the folder of Mesa, which MESA_TAR, an archive of it, or the network fills if it is empty.
# ONLY="swin_t half 740" makes some rows, MODELS="swin_t" tunes some networks.
set -u
cd "$(dirname "$0")/.." || exit 1
what=${1:-rows} seconds=${2:-560}
: "${OUT:?names the folder for the results}"
begin=$SECONDS
state=${STATE:-.cache/adreno_machine} python=${PYTHON:-python} cores=$(nproc)
jobs=${JOBS:-$((cores > 4 ? cores - 3 : 1))}
mkdir -p "$state" "$OUT"
export SMARTMEM_MESA=${SMARTMEM_MESA:-$PWD/$state/mesa} SMARTMEM_ISA_CACHE=${SMARTMEM_ISA_CACHE:-$PWD/$state/isa}
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
rows=$state/adreno_networks.json

left() { echo $((seconds - (SECONDS - begin))); }

mesa() { # have Mesa in its folder
  [ -d "$SMARTMEM_MESA/root" ] && return
  mkdir -p "$SMARTMEM_MESA"
  if [ -n "${MESA_TAR:-}" ]; then
    tar -xf "$MESA_TAR" -C "$SMARTMEM_MESA"
  else
    timeout 300 "$python" -m smartmem_tvm isa --setup
  fi
}

seed() { # take the files of an earlier call where there are none
  for file in "${SEED:-/nowhere}"/adreno_networks.json "${SEED:-/nowhere}"/adreno_*.records.jsonl; do
    [ -f "$file" ] && [ ! -f "$state/${file##*/}" ] && cp "$file" "$state/"
  done
}

records() { # the file of an Adreno's records: what the repository has to begin with
  local name=adreno_$1-opencl-texture-tvm-0.27.0.post1.records.jsonl
  [ -f "$state/$name" ] || cp "tuning_logs/$name" "$state/"
  echo "$state/$name"
}

make_rows() {
  # shellcheck disable=SC2086
  timeout -k 5 "$(left)" "$python" benchmarks/adreno_networks.py --jobs "$jobs" --into "$rows" ${ONLY:+--only $ONLY}
}

tune() {
  local each=$((cores / 3 > 0 ? cores / 3 : 1)) number=0 models=() minutes
  for model in ${MODELS:-swin_t vit_b16 convnext_t resnext50}; do models+=("models/$model.onnx"); done
  minutes=$(awk "BEGIN { print ($(left) - 45) / 60 }")
  for gpu in 740 660 830; do
    local first=$((number * each % cores))
    taskset -c "$first-$((first + each - 1))" timeout -k 5 "$(left)" "$python" -m smartmem_tvm tune "${models[@]}" \
      --target "adreno-$gpu" --precision half --judge mesa --trials "${TRIALS:-32}" --minutes "$minutes" \
      -o "$(records $gpu)" > "$state/tune_$gpu.log" 2>&1 &
    number=$((number + 1))
  done
  wait
  tail -n 6 "$state"/tune_*.log
}

mesa && seed
case $what in
  rows) make_rows ;;
  tune) tune ;;
  *) echo "rows or tune, not $what" >&2; exit 2 ;;
esac
code=$?
cp "$state"/adreno_networks.json "$state"/adreno_*.records.jsonl "$state"/tune_*.log "$OUT" 2> /dev/null
"$python" - "$rows" <<'END'
import json, sys
from pathlib import Path

sys.path.insert(0, "benchmarks")
from adreno_networks import read, summary

rows = read(Path(sys.argv[1]))
found = [summary(row) for row in rows.values()]
scratch = sum((kernel.get("scratch") or 0) > 0 for row in rows.values() for kernel in row["kernels"])
print(json.dumps({"rows": len(rows), "kernels_with_scratch": scratch, "ms": sum(f["seconds"] for f in found) * 1e3}))
END
[ "$what" = rows ] && [ $code = 0 ] && echo '{"complete": true}'
exit 0
