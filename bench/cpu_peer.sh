#!/bin/bash
# cpu_peer.sh PEER_DIR FILE.gguf...: Loom beside another program on the same files, on the processors of this machine.
# PEER_DIR has the binaries of a llama.cpp or one of its kin: llama-bench, llama-server and, for batches,
# llama-batched-bench. Both sides are measured in turn, each in a process of its own, PAIRS times; the side that begins
# alternates. Prints medians, spreads and ratios, and adds lines to bench/results/cpu_peer.csv.
#
#   PAIRS (5)      THREADS (all processors)
#   PARTS          of "decode batch prefill serve", all by default
#   PEER_NAME      what the lines call it (the folder's name)
#   PEER_ENV       environment of the peer: "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
#   PEER_FLAGS     of its llama-bench: "-rtr 1 -mmp 0"
#   PEER_SERVER_FLAGS, PEER_BATCH_FLAGS   of the other two: "-rtr --no-mmap"
#   LOOM_FLAGS     of loom bench and loom serve: "--weights q8_0", for files with floats
#   PROMPT (64), TOKENS (32)              of each client of the servers
#   RAW            a file that keeps single measurements: later runs with the same one add to them and sum up all
set -u
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -gt 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
PEER=$(cd "$1" && pwd) || exit 2
shift
FILES=()
for file in "$@"; do FILES+=("$(readlink -f "$file")"); done
cd "$TOP" || exit 1
# shellcheck source=test/e2e/lib.sh
. test/e2e/lib.sh
# shellcheck source=bench/lib.sh
. bench/lib.sh
PAIRS=${PAIRS:-5} THREADS=${THREADS:-$(nproc)} PROMPT=${PROMPT:-64} TOKENS=${TOKENS:-32}
PEER_NAME=${PEER_NAME:-$(basename "$PEER")}
PARTS=${PARTS:-decode batch prefill serve}
RAW=${RAW:-$WORK/raw}
CLIENTS="1 8 32" SLOTS=32
CONTEXT=$((PROMPT + TOKENS + 64))

# note FILE SIDE WHAT VALUE: a single measurement. The fields have no spaces but for the file's name, which is last.
note() {
    [ -n "$4" ] || must "$2 measures $3 on $1" false
    echo "$3 $2 $4 $1" >>"$RAW"
    [ -z "${VERBOSE:-}" ] || echo "$3 $2 $4 $1"
}

# peer PROGRAM ARGS...: its output; what it says on stderr is kept for a failure, as are files that it leaves.
peer() {
    local program=$1
    shift
    # shellcheck disable=SC2086
    env -C "$WORK" ${PEER_ENV:-} "$PEER/$program" "$@" 2>>"$WORK/peer.err"
}
loom_bench() { # FILE ARGS...
    # shellcheck disable=SC2086
    "$LOOM" bench "$@" --threads "$THREADS" --json ${LOOM_FLAGS:-} 2>>"$WORK/loom.err"
}
peer_bench() { # FILE ARGS...
    # shellcheck disable=SC2086
    peer llama-bench -m "$@" -t "$THREADS" -r 1 -o json ${PEER_FLAGS:-} |
        sed -n 's/^ *"avg_ts": *\([0-9.]*\).*/\1/p' | head -n 1
}

# Prompts are short here, on both sides, so that nearly all of the memory that is read is weights.
decode_loom() { note "$1" loom decode_1 "$(loom_bench "$1" -p 1 -g 64 -b 1 | value 'd["decode_tps"]')"; }
decode_peer() { note "$1" peer decode_1 "$(peer_bench "$1" -p 0 -n 64)"; }
prefill_loom() { note "$1" loom prefill_512 "$(loom_bench "$1" -p 512 -g 1 -b 1 | value 'd["prefill_tps"]')"; }
prefill_peer() { note "$1" peer prefill_512 "$(peer_bench "$1" -p 512 -n 0)"; }

batch_loom() {
    local line
    loom_bench "$1" -p 16 -g 32 -b 8,32 >"$WORK/out"
    while read -r line; do
        note "$1" loom "decode_$(value 'd["batch"]' <<<"$line")" "$(value 'd["decode_tps"]' <<<"$line")"
    done <"$WORK/out"
}
batch_peer() {
    local n tps
    : >"$WORK/peer.err"
    # shellcheck disable=SC2086
    peer llama-batched-bench -m "$1" -t "$THREADS" -c 4096 -npp 16 -ntg 32 -npl 8,32 ${PEER_BATCH_FLAGS:-} >"$WORK/out"
    for n in 8 32; do # its table, on stdout or stderr: PP, TG, B, N_KV, T_PP, S_PP, T_TG, S_TG, ...
        tps=$(awk -F'|' -v n=$n '$2 + 0 == 16 && $4 + 0 == n { print $9 + 0 }' "$WORK/out" "$WORK/peer.err")
        note "$1" peer decode_$n "$tps"
    done
}

# clients FILE SIDE BODY: 1, 8 and 32 clients of $URL, who come at once.
clients() {
    local n
    for n in $CLIENTS; do
        measure "$2.$n" --body "$3" --streams "$n" --prompt "$PROMPT" --tokens "$TOKENS"
        tail -n 1 "$WORK/$2.$n" >"$WORK/last"
        must "$2 answers all $n clients" equal "$n" "$(value 'd["finished"]' <"$WORK/last")"
        [ "$(value 'd["tokens"]' <"$WORK/last")" = $((n * TOKENS)) ] ||
            echo "$2: some of $n answers ended early: compare with care"
        note "$1" "$2" "serve_tps_$n" "$(value 'd["tokens"] / d["wall_s"]' <"$WORK/last")"
        note "$1" "$2" "serve_first_ms_$n" "$(value 'd["ttft_ms"]' <"$WORK/last")"
    done
}
stop() { # NAME
    kill -KILL "${PID[$1]}" 2>/dev/null
    wait "${PID[$1]}" 2>/dev/null
    unset "PID[$1]"
}
serve_loom() {
    OF=''
    # shellcheck disable=SC2086
    serve loom "$1" --threads "$THREADS" --context "$CONTEXT" --sequences $SLOTS ${LOOM_FLAGS:-}
    ready loom
    clients "$1" loom '{}'
    stop loom
}
serve_peer() {
    local port
    OF=''
    port=$(free_port)
    URL=http://127.0.0.1:$port
    # shellcheck disable=SC2086
    start peer env -C "$WORK" ${PEER_ENV:-} "$PEER/llama-server" -m "$1" --host 127.0.0.1 --port "$port" -t "$THREADS" \
        -c $((CONTEXT * SLOTS)) -np $SLOTS ${PEER_SERVER_FLAGS:-}
    must "the peer becomes ready" within 120 is_ready
    clients "$1" peer '{"ignore_eos": true, "cache_prompt": false}'
    stop peer
}

for tool in llama-bench llama-batched-bench llama-server; do
    [ -x "$PEER/$tool" ] && continue
    echo "left out: $PEER/$tool is not there"
    case $tool in
        llama-bench) PARTS=${PARTS//decode/} PARTS=${PARTS//prefill/} ;;
        llama-batched-bench) PARTS=${PARTS//batch/} ;;
        llama-server) PARTS=${PARTS//serve/} ;;
    esac
done
for ((pair = 0; pair < PAIRS; pair++)); do
    for file in "${FILES[@]}"; do
        for part in $PARTS; do
            if ((pair % 2)); then order="peer loom"; else order="loom peer"; fi
            for side in $order; do "${part}_$side" "$file"; done
        done
    done
done

python3 bench/cpu_peer.py "$RAW" "${FILES[@]}" >"$WORK/lines" || exit 1
while read -r line; do
    add cpu_peer.csv "threads,file,peer,measure,pairs,loom,loom_spread_pct,peer_value,peer_spread_pct,ratio,\
ratio_spread_pct" "$THREADS,${line/,/,$PEER_NAME,}" >/dev/null
done < <(grep -v '^ ' "$WORK/lines")
sed -n 's/^ //p' "$WORK/lines"
