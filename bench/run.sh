#!/bin/bash
# run.sh [MODEL...]: speed of the program on this machine, one line a model, instruction set and batch, added to
# bench/results/<processor>.csv. Without arguments: the models that lie beside it. bench/README.md explains the columns.
set -u
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$TOP" || exit 1
LOOM=${LOOM:-build/loom}
RESULTS=${RESULTS:-bench/results}
[ -x "$LOOM" ] || { echo "run.sh: $LOOM is not there: make" >&2; exit 1; }

MODELS=("$@")
if [ $# -eq 0 ]; then
    for model in models/*/ ../shared/models/*/; do
        # A model that lies in both places is measured once.
        name=$(basename "$model")
        [ -f "$model/config.json" ] && [[ " ${MODELS[*]-} " != *"/$name "* ]] && MODELS+=("${model%/}")
    done
fi
CPU=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1 | tr -cs 'A-Za-z0-9.' '-' | sed 's/-*$//')
CSV="$RESULTS/${CPU:-unknown}.csv"
mkdir -p "$RESULTS"
COLUMNS_OF_CSV="date,model,weights,isa,threads,batch,prefill,decode,prefill_tps,ttft_ms,decode_tps,gb_s,read_gb_s,tops,peak_tops,head_us"
[ -s "$CSV" ] || echo "$COLUMNS_OF_CSV" >"$CSV"

for model in "${MODELS[@]}"; do
    for isa in ref avx2 avx512; do
        case $isa in ref) batches=1 ;; *) batches=1,8,32 ;; esac
        if ! "$LOOM" bench "$model" -p 512 -g 128 -b $batches --isa $isa --json >/tmp/loom-bench.$$; then
            echo "left out: $model with $isa"
            continue
        fi
        python3 - "$COLUMNS_OF_CSV" /tmp/loom-bench.$$ <<'END' | tee -a "$CSV"
import datetime, json, sys
for line in open(sys.argv[2]):
    row = {"date": datetime.date.today().isoformat(), **json.loads(line)}
    print(",".join(str(row[name]) for name in sys.argv[1].split(",")))
END
    done
done
rm -f /tmp/loom-bench.$$
echo "written to $CSV"
