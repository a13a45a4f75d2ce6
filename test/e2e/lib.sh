# Shared by the e2e scripts: processes that end with the script, checks that count, and how to talk to an endpoint.
# A script sources this first. It leaves $WORK (a folder of its own), $MODEL, and $LOOM_STATE inside $WORK.
# shellcheck shell=bash disable=SC2034
set -u
LOOM=${LOOM:-build/loom}
MODEL=models/loom-demo
MOE=../shared/models/loom-demo-moe
E2E=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
LOAD="$E2E/lib_load.py"

if [ ! -x "$LOOM" ]; then
    echo "skipped: needs the program $LOOM (make)"
    exit 77
fi
for tool in curl python3; do
    command -v "$tool" >/dev/null || { echo "skipped: needs $tool"; exit 77; }
done

WORK=$(mktemp -d /tmp/loom-e2e-XXXXXX)
# Every process that this script starts inherits the tag: so they can be found again, those of --local-nodes included.
export LOOM_E2E_TAG="$WORK"
export LOOM_STATE="$WORK/state"
export LC_ALL=C.UTF-8
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY all_proxy
CHECKS=0
FAILED=0
URL=
LAST_PID=
declare -A PID=() # of what `start NAME` started

# Processes with the tag, this script and its helpers left out.
tagged() {
    local p
    for p in /proc/[0-9]*; do
        [ "$(readlink "$p/exe" 2>/dev/null)" = "$LOOM_EXE" ] || continue
        tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -qxF "LOOM_E2E_TAG=$WORK" && echo "${p#/proc/}"
    done
    return 0
}
LOOM_EXE=$(readlink -f "$LOOM")

cleanup() {
    local rc=$? p
    trap - EXIT INT TERM
    exec 2>/dev/null # the shell would tell of each process that it killed
    for p in $(tagged); do kill -CONT "$p" 2>/dev/null; kill -KILL "$p" 2>/dev/null; done
    for p in $(jobs -p); do kill -KILL "$p" 2>/dev/null; done
    wait 2>/dev/null
    if [ "$rc" -ne 0 ] && [ -n "${KEEP:-}" ]; then echo "logs are kept in $WORK"; else rm -rf "$WORK"; fi
    exit "$rc"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say() { echo "== $*"; }

# The ends of all logs: a test that failed on another machine must explain itself.
show_logs() {
    local f
    for f in "$WORK"/*.err; do
        [ -s "$f" ] || continue
        echo "--- $(basename "$f"):"
        tail -n 12 "$f"
    done
}

# ok DESCRIPTION CONDITION-COMMAND...: one check; the script goes on after a failure.
ok() {
    local what=$1
    shift
    CHECKS=$((CHECKS + 1))
    if "$@"; then return 0; fi
    FAILED=$((FAILED + 1))
    echo "FAILED: $what"
    return 1
}

# A check without which the rest makes no sense.
must() {
    ok "$@" && return 0
    show_logs
    echo "stopped after $CHECKS checks, $FAILED failed"
    exit 1
}

finish() {
    [ "$FAILED" -eq 0 ] || show_logs
    echo "$(basename "$0"): $CHECKS checks, $FAILED failed"
    [ "$FAILED" -eq 0 ]
    exit
}

equal() { # WANT GOT
    [ "$1" = "$2" ] && return 0
    echo "  want: $1"
    echo "  got:  $2"
    return 1
}

# start NAME COMMAND...: in the background, with its output in $WORK/NAME.out and $WORK/NAME.err.
start() {
    local name=$1
    shift
    rm -f "$WORK/$name.out" # of an earlier one: its address must not be taken for the new one's
    "$@" >"$WORK/$name.out" 2>>"$WORK/$name.err" </dev/null &
    LAST_PID=$!
    PID[$name]=$LAST_PID
}

alive() { kill -0 "$1" 2>/dev/null && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null; }
dead() { ! alive "$1"; }

# within SECONDS COMMAND...: repeats until it succeeds. The bounds are far above what is usual: they end a test, they
# do not measure.
within() {
    local until=$((SECONDS + $1))
    shift
    while ! "$@"; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.1
    done
}

# end NAME [SIGNAL]: asks for the end and waits for it; the exit code is in $RC.
end() {
    local pid=${PID[$1]}
    kill "-${2:-TERM}" "$pid" 2>/dev/null
    kill -CONT "$pid" 2>/dev/null
    within 20 dead "$pid" || { echo "  $1 does not end"; kill -KILL "$pid"; }
    wait "$pid" 2>/dev/null
    RC=$?
}

kill9() { # NAME
    kill -KILL "${PID[$1]}"
    wait "${PID[$1]}" 2>/dev/null
}

has_url() { # NAME
    URL=$(sed -n 's/^listening on //p' "$WORK/$1.out" 2>/dev/null)
    [ -n "$URL" ]
}
is_ready() { [ "$(curl -s -o /dev/null -m 5 -w '%{http_code}' "$URL/health")" = 200 ]; }

# serve NAME ARGS...: `loom serve` on a free port; sets $URL.
serve() {
    local name=$1
    shift
    start "$name" "$LOOM" serve "$@" --listen 127.0.0.1:0
    must "$name says where it listens" within 60 has_url "$name"
}
ready() { must "${1:-the head} becomes ready" within 90 is_ready; }

# A cluster's head, and the port where nodes join.
PORT=
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
head_of() { # NAME ARGS...
    PORT=$(free_port)
    serve "$@" --cluster "127.0.0.1:$PORT"
}
token() { "$LOOM" token create --address "127.0.0.1:$PORT" "$@"; }

# node NAME JOIN ARGS...: `loom node` with a state folder of its own.
node() {
    local name=$1 join=$2
    shift 2
    start "$name" "$LOOM" node --join "$join" --name "$name" --state "$WORK/$name.state" --listen 127.0.0.1:0 \
        --memory "${NODE_MEMORY:-1G}" --threads 1 "$@"
}

# value EXPRESSION: of the JSON on stdin, called d; what is missing gives an empty line.
value() { python3 -c "import json, sys
try:
    d = json.load(sys.stdin)
    print($1)
except (ValueError, KeyError, IndexError, TypeError): print()"; }
status() { curl -s -m 10 "$URL/loom/v1/status" | value "$1"; }
status_is() { [ "$(status "$1")" = "$2" ]; } # EXPRESSION WANT
nodes_are() { status_is 'len(d["nodes"])' "$1"; }
route_is() { status_is 'len(d["stages"]) if d["ready"] else 0' "$1"; }
# Nothing runs, and no stage holds a block any more.
at_rest() {
    status_is '[d["running"], d["waiting"], d["kv_blocks_used"], d.get("local", {}).get("blocks_used", 0)] +
        [n["blocks_used"] for n in d["nodes"]] + [n["slots_used"] for n in d["nodes"]] == [0] * (4 + 2 * len(d["nodes"]))' True
}
# post PATH BODY [CURL OPTIONS]: body of the answer; its status goes to $WORK/code, its header lines to $WORK/headers.
post() {
    local path=$1 body=$2
    shift 2
    curl -s -m 120 -D "$WORK/headers" -o - -H 'Content-Type: application/json' -d "$body" "$@" "$URL$path"
}
code() { sed -n '1s/^HTTP[^ ]* \([0-9]*\).*/\1/p' "$WORK/headers"; }
load() { python3 "$LOAD" "$@"; }
