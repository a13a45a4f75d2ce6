#!/bin/bash
# gap.sh [SEED]: what a client notices of a node that is killed. 8 streams over 4 nodes, then SIGKILL of one; a stream's
# added gap is its longest interval between two pieces of text that ends after the kill and begins within a second of it,
# less the stream's median interval of the 2 s before. A line is added to bench/results/gap.csv.
set -u
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$TOP" || exit 1
# shellcheck source=test/e2e/lib.sh
. test/e2e/lib.sh
RANDOM=${1:-$$}
RESULTS=${RESULTS:-bench/results}

load make --n 8 --tokens 1500 --kind count >"$WORK/requests"
head_of head "$MODEL" --min-nodes 4 --context 2048
for i in 0 1 2 3; do node "node-$i" "$(token)"; done
ready
load send "$URL" "$WORK/requests" --at-once 8 --stream yes --out "$WORK/got" &
SENDER=$!
eight() { status_is 'd["running"]' 8; }
must "8 streams run" within 60 eight
sleep 1 # the answers of this small model take two or three seconds
victim=node-$((RANDOM % 4))
date +%s.%N >"$WORK/kills"
kill9 "$victim"
wait $SENDER
must "all of them end well" equal 0 $?
LINE=$(load gap_row "$WORK/got" "$WORK/kills")
must "they were under way when the node was killed" test -n "$LINE"
mkdir -p "$RESULTS"
CSV="$RESULTS/gap.csv"
[ -s "$CSV" ] || echo "date,cpu,threads,streams,stages,median_ms,worst_gap_ms,median_gap_ms" >"$CSV"
CPU=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1 | tr -s ', ' ' ')
echo "$(date +%F),$CPU,$(nproc),$(echo "$LINE" | cut -d, -f1),4,$(echo "$LINE" | cut -d, -f2-)" | tee -a "$CSV"
