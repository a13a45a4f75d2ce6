#!/bin/bash
# shadow.sh MODEL [FLAGS of loom serve]: what shadows cost while nothing fails. Two clusters of NODES (3) nodes with one
# thread each, one without redundancy and one with shadows, in turn: the CPU seconds of all nodes and the bytes between
# all processes, up to the moment when the shadows have caught up, for one stream that decodes and for prompts. Lines
# are added to bench/results/shadow.csv. ROUNDS (3), TOKENS (256) and PROMPT (2048) may be set.
set -u
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$TOP" || exit 1
# shellcheck source=test/e2e/lib.sh
. test/e2e/lib.sh
# shellcheck source=bench/lib.sh
. bench/lib.sh
[ $# -gt 0 ] || { echo "shadow.sh: MODEL is missing (the bundled one is too small to tell)" >&2; exit 2; }
MODEL=$1
shift
NODES=${NODES:-3} TOKENS=${TOKENS:-256} PROMPT=${PROMPT:-2048}
COMMON="--context $((PROMPT + TOKENS)) --sequences 4 $*"

SERVE="$COMMON $(redundancy none)"
cluster none "$NODES" "$MODEL"
NONE_URL=$URL NONE_OF=$OF
SERVE="$COMMON $(redundancy shadow)"
cluster shadow "$NODES" "$MODEL"
SHADOW_URL=$URL SHADOW_OF=$OF

for ((round = 0; round < ${ROUNDS:-3}; round++)); do
    for system in none shadow; do
        if [ $system = none ]; then URL=$NONE_URL OF=$NONE_OF; else URL=$SHADOW_URL OF=$SHADOW_OF; fi
        measure $system.decode --prompt 1 --tokens "$TOKENS" --settle
        measure $system.prefill --prompt "$PROMPT" --tokens 1 --settle
    done
done

URL=$SHADOW_URL
STAGES=$(status 'len(d["stages"])')
# Steps of serving stages that found their thread busy for a shadow; empty where status does not tell.
WAITED=$(status 'sum(n["waited"] for n in d["nodes"])')
# Keys and values of int8 with a scale each, of all layers: what a copy of the cache would have to carry.
KV=$(of_config "$MODEL" 'd["num_hidden_layers"] * d["num_key_value_heads"] * 2 * (d["head_dim"] + 4)')
for phase in decode prefill; do
    case $phase in
        decode) tokens=$TOKENS tps="d['decode_tps']" ;;
        *) tokens=$PROMPT tps="$PROMPT * 1e3 / d['ttft_ms']" ;;
    esac
    cpu="1e3 * sum(s for n, s in d['cpu_s'].items() if n != 'head') / $tokens"
    bytes="sum(d['wire'].values()) / $tokens"
    none=$(median none.$phase "$cpu")
    shadow=$(median shadow.$phase "$cpu")
    none_bytes=$(median none.$phase "$bytes")
    shadow_bytes=$(median shadow.$phase "$bytes")
    add shadow.csv "model,weights,nodes,stages,phase,tokens,cpu_ms_token_none,cpu_ms_token_shadow,extra_pct,\
tps_none,tps_shadow,wire_bytes_token_none,wire_bytes_token_shadow,feed_bytes_token,kv_bytes_token,waited" \
        "$(basename "$MODEL"),$(weights),$NODES,$STAGES,$phase,$tokens,$none,$shadow,\
$(calc "100 * ($shadow - $none) / $none"),$(median none.$phase "$tps"),\
$(median shadow.$phase "$tps"),$none_bytes,$shadow_bytes,$(calc "$shadow_bytes - $none_bytes"),$KV,$WAITED"
done
