#!/bin/bash
# split.sh MODEL [FLAGS of loom serve]: what it costs, and gains, to split a model. One process with one thread beside a
# head and two nodes with one thread each, in turn: one stream, two streams, a prompt of 2048 tokens. A line is added to
# bench/results/split.csv. ROUNDS (3) and TOKENS (128) may be set.
set -u
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$TOP" || exit 1
# shellcheck source=test/e2e/lib.sh
. test/e2e/lib.sh
# shellcheck source=bench/lib.sh
. bench/lib.sh
[ $# -gt 0 ] || { echo "split.sh: MODEL is missing (the bundled one is too small to tell)" >&2; exit 2; }
MODEL=$1
shift
SERVE="--context 2304 --sequences 4 $(redundancy none) $*"
TOKENS=${TOKENS:-128}

alone one "$MODEL"
ONE_URL=$URL ONE_OF=$OF
cluster two 2 "$MODEL"
TWO_URL=$URL TWO_OF=$OF
must "both nodes hold layers" status_is 'len(d["stages"])' 2

for ((round = 0; round < ${ROUNDS:-3}; round++)); do
    for system in one two; do
        if [ $system = one ]; then URL=$ONE_URL OF=$ONE_OF; else URL=$TWO_URL OF=$TWO_OF; fi
        measure $system.1 --streams 1 --prompt 1 --tokens "$TOKENS"
        measure $system.2 --streams 2 --tokens "$TOKENS"
        measure $system.p --streams 1 --prompt 2048 --tokens 2
    done
    # Three ways: to the first stage, between the stages, and back.
    status '1.5 * sum(n["rtt_ms"] for n in d["nodes"]) / len(d["nodes"])' >>"$WORK/hop"
done

ONE=$(median one.1 '1e3 / d["decode_tps"]')
TWO=$(median two.1 '1e3 / d["decode_tps"]')
HOP=$(sort -n "$WORK/hop" | sed -n "$((($(wc -l <"$WORK/hop") + 1) / 2))p")
# Heartbeats share the links between head and nodes; only steps go from node to node.
PIECE=$(median two.1 'max(d["wire"].get("node-0>node-1", 0), d["wire"].get("node-1>node-0", 0)) / d["tokens"]')
WIRE=$(median two.1 'sum(d["wire"].values()) / d["tokens"]')
IDLE=$(median two.1 'sum(d["idle_wire"].values())')
WIDTH=$(of_config "$MODEL" 'd["hidden_size"]')
ONE_PREFILL=$(median one.p '2048e3 / d["ttft_ms"]')
TWO_PREFILL=$(median two.p '2048e3 / d["ttft_ms"]')
add split.csv "model,weights,one_ms,two_ms,hop_ms,overhead_pct,streams_2_gain,one_streams_2_gain,prefill_tps_one,\
prefill_tps_two,prefill_gain,hop_bytes,hop_bytes_bound,wire_bytes_token,wire_bytes_idle_s" \
    "$(basename "$MODEL"),$(weights),$ONE,$TWO,$(calc "$HOP"),$(calc "100 * ($TWO - $HOP - $ONE) / $ONE"),\
$(calc "$(median two.2 'd["decode_tps"]') * $TWO / 1e3"),$(calc "$(median one.2 'd["decode_tps"]') * $ONE / 1e3"),\
$ONE_PREFILL,$TWO_PREFILL,$(calc "$TWO_PREFILL / $ONE_PREFILL"),$PIECE,$((2 * WIDTH + 200)),$WIRE,$IDLE"
