#!/bin/bash
# peers.sh MODEL [FLAGS of loom serve]: Loom beside another program that splits models, on the same weights, in the same
# run: one process with one thread, and two workers with one thread each. Load time, first token of a prompt of 512,
# decoding at 1, 4, 16 and 32 streams, bytes on the wire; then SIGKILL and SIGSTOP of a worker while 8 streams run, and
# nine bytes from a stranger. Lines are added to bench/results/peers.csv.
# The other program is measured if these are set: PEER_SERVER and PEER_RPC, paths of a llama.cpp's llama-server and RPC
# server, PEER_MODEL, the same weights as GGUF. TOKENS (96), PATIENCE (60 s for a stream to end after a loss) and
# SYSTEMS may be set.
set -u
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$TOP" || exit 1
# shellcheck source=test/e2e/lib.sh
. test/e2e/lib.sh
# shellcheck source=bench/lib.sh
. bench/lib.sh
[ $# -gt 0 ] || { echo "peers.sh: MODEL is missing (the bundled one is too small to tell)" >&2; exit 2; }
MODEL=$1
shift
CONTEXT=1024 SEQUENCES=32
TOKENS=${TOKENS:-96} PATIENCE=${PATIENCE:-60}
SERVE="--context $CONTEXT --sequences $SEQUENCES $(redundancy shadow) $*"
SYSTEMS=${SYSTEMS:-"loom-one loom-two peer-one peer-two"}
if [ -z "${PEER_SERVER:-}" ] || [ -z "${PEER_RPC:-}" ] || [ -z "${PEER_MODEL:-}" ]; then
    echo "skipped: the other program (PEER_SERVER, PEER_RPC, PEER_MODEL)"
    SYSTEMS=${SYSTEMS//peer-???/}
fi

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# peer_server NAME FLAGS...
peer_server() {
    local name=$1 port
    shift
    port=$(free_port)
    URL=http://127.0.0.1:$port
    start "$name" "$PEER_SERVER" -m "$PEER_MODEL" --host 127.0.0.1 --port "$port" -t 1 -c $((CONTEXT * SEQUENCES)) \
        -np $SEQUENCES "$@"
    must "$name becomes ready" within 600 is_ready
}

# up SYSTEM: starts it; sets $URL, $OF, $BODY, $HEAD (a name), and of two workers $WORKER and $DOOR (a name, its port).
up() {
    local i ports=()
    BODY='{}' HEAD=$1 WORKER='' DOOR=''
    case $1 in
        loom-one) alone loom-one "$MODEL" ;;
        loom-two)
            cluster loom-two 2 "$MODEL"
            WORKER=loom-two-1
            DOOR=$(status '[n["address"] for n in d["nodes"] if n["name"] == "loom-two-1"][0].split(":")[1]')
            ;;
        peer-*)
            BODY='{"ignore_eos": true, "cache_prompt": false}'
            if [ "$1" = peer-two ]; then
                for i in 0 1; do
                    ports[i]=$(free_port)
                    start "worker-$i" "$PEER_RPC" --host 127.0.0.1 --port "${ports[i]}" --threads 1
                    must "worker-$i listens" within 20 listens "${ports[i]}"
                done
                peer_server peer-two -ngl 99 --tensor-split 1,1 --rpc "127.0.0.1:${ports[0]},127.0.0.1:${ports[1]}"
                OF="head=${PID[peer-two]} node-0=${PID[worker-0]} node-1=${PID[worker-1]}"
                WORKER=worker-1 DOOR=${ports[1]}
            else
                peer_server peer-one
                OF="head=${PID[peer-one]}"
            fi
            ;;
    esac
}

# Ends all that up started.
down() {
    local name
    for name in "${!PID[@]}"; do
        kill -CONT "${PID[$name]}" 2>/dev/null
        kill -KILL "${PID[$name]}" 2>/dev/null
        wait "${PID[$name]}" 2>/dev/null
        unset "PID[$name]"
    done
    for name in $(tagged); do kill -KILL "$name" 2>/dev/null; done
}

# What the head is now: what /health says, or how it ended.
head_now() {
    if alive "${PID[$HEAD]}"; then
        echo "health $(curl -s -o /dev/null -m 5 -w '%{http_code}' "$URL/health")"
    else
        wait "${PID[$HEAD]}" 2>/dev/null
        echo "ended with $?"
    fi
}

# Adds to $LOSSES: how many of 8 streams ended well when the worker got the signal, and whether with the text that they
# have without it; the worst added gap; and the head after it.
loss() { # SYSTEM SIGNAL
    local finished hash after
    up "$1"
    measure "$1.whole" --body "$BODY" --streams 8 --tokens 64
    SEED=$((SEED - 1)) # the same prompts again
    # The shell would tell of a worker that was killed.
    measure "$1.$2" --body "$BODY" --streams 8 --tokens 64 --strike "${PID[$WORKER]}" --signal "$2" \
        --patience "$PATIENCE" 2>>"$WORK/measure.err"
    after=$(head_now)
    finished=$(value 'd["finished"]' <"$WORK/$1.$2")/8
    hash=$(value 'd["hash"]' <"$WORK/$1.$2")
    [ "$hash" != "$(tail -n 1 "$WORK/$1.whole" | value 'd["hash"]')" ] || finished+=" same text"
    LOSSES+="$finished,$(value 'd["added_gap_ms"] or ""' <"$WORK/$1.$2"),$after,"
    down
}

# Sets $STRANGER: whether the worker lives after nine bytes from somebody whom it does not know.
stranger() {
    up "$1"
    (exec 3<>"/dev/tcp/127.0.0.1/$DOOR" && printf 'hello you' >&3) 2>/dev/null
    sleep 1
    if alive "${PID[$WORKER]}"; then STRANGER=lives; else STRANGER=ended; fi
    down
}

for system in $SYSTEMS; do
    T0=$(date +%s%N)
    up "$system"
    LOAD_S=$(calc "($(date +%s%N) - $T0) / 1e9")
    for n in 1 4 16 32; do
        measure "$system.$n" --body "$BODY" --streams $n --prompt 16 --tokens "$TOKENS"
    done
    for _ in 1 2 3; do measure "$system.first" --body "$BODY" --prompt 512 --tokens 2; done
    down
    LOSSES=,,,,,, STRANGER=
    if [[ $system = *-two ]]; then
        LOSSES=
        loss "$system" KILL
        loss "$system" STOP
        stranger "$system"
    fi
    add peers.csv "model,weights,system,load_s,ttft_512_ms,tps_1,tps_4,tps_16,tps_32,cpu_ms_token_1,\
cpu_ms_token_32,wire_bytes_token,kill_finished,\
kill_gap_ms,head_after_kill,stop_finished,stop_gap_ms,head_after_stop,worker_after_stranger" \
        "$(basename "$MODEL"),$(weights),$system,$LOAD_S,$(median "$system.first" 'd["ttft_ms"]'),\
$(for n in 1 4 16 32; do median "$system.$n" 'd["decode_tps"]'; done | tr '\n' ',')\
$(for n in 1 32; do median "$system.$n" '1e3 * sum(d["cpu_s"].values()) / d["tokens"]'; done | tr '\n' ',')\
$(median "$system.1" 'sum(d["wire"].values()) / d["tokens"]'),$LOSSES$STRANGER"
done
