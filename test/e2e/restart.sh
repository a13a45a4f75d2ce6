#!/bin/bash
# The head is killed under load and started again: streams go on where they were, and end as if nothing had happened.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

RESUME="$E2E/lib_resume.py"
resume() { python3 "$RESUME" "$@"; }
running() { status 'd["running"]'; }
running_is() { [ "$(running)" = "$1" ]; }
some_tokens() { # N: at least so many were drawn by this head
    local n
    n=$(status 'd["tokens"]')
    [ "${n:-0}" -ge "$1" ]
}
# The worst wait of all breaks in a file of answers, as milliseconds.
worst_ms() { python3 -c 'import json, sys
waits = [b[1] for line in open(sys.argv[1]) for b in json.loads(line)["breaks"] if b[1] is not None]
print(round(1000 * max(waits, default=0)))' "$1"; }
broke() { python3 -c 'import json, sys
print(sum(1 for line in open(sys.argv[1]) if json.loads(line)["breaks"]))' "$1"; }

# Head and endpoint keep their ports, as they do on a real machine.
HTTP=$(free_port)
PORT=$(free_port)
head_starts() { # ARGS...
    start head "$LOOM" serve "$MODEL" --context 2048 --listen "127.0.0.1:$HTTP" --cluster "127.0.0.1:$PORT" "$@"
    must "the head says where it listens" within 60 has_url head
}

say "undisturbed"
head_starts --min-nodes 3
for name in one two three; do node "$name" "$(token)"; done
within 30 nodes_are 3
ready
resume make --n 8 --tokens 1600 >"$WORK/requests"
must "8 streams" resume send "$URL" "$WORK/requests" --out "$WORK/want"
ok "nothing broke" equal 0 "$(broke "$WORK/want")"
ok "at rest" within 20 at_rest

for round in 1 2 3; do
    say "kill -9, round $round"
    resume send "$URL" "$WORK/requests" --out "$WORK/got$round" >"$WORK/summary$round" &
    CLIENTS=$!
    must "all are under way" within 60 running_is 10
    sleep "0.$((round * 3))"

    kill9 head
    [ "$round" -ne 2 ] || sleep 1 # a supervisor that is slow
    head_starts --min-nodes 3
    wait "$CLIENTS"
    ok "every stream ends" equal 0 $?
    cat "$WORK/summary$round"
    ok "as if nothing had happened" load compare "$WORK/want" "$WORK/got$round"
    ok "most were broken" test "$(broke "$WORK/got$round")" -ge 6
    ok "nothing is left" within 20 at_rest
    ok "the head kept its nodes" within 30 nodes_are 3
done
echo "worst wait of a client, from the break to the next event: $(worst_ms "$WORK/got1") $(worst_ms "$WORK/got2") $(worst_ms "$WORK/got3") ms"

say "head and a node at once"
resume send "$URL" "$WORK/requests" --out "$WORK/got4" >"$WORK/summary4" &
CLIENTS=$!
must "all are under way" within 60 running_is 10
sleep 0.4
kill9 head
kill9 two
head_starts --min-nodes 2
wait "$CLIENTS"
ok "every stream ends" equal 0 $?
cat "$WORK/summary4"
ok "as if nothing had happened" load compare "$WORK/want" "$WORK/got4"
ok "nothing is left" within 20 at_rest

say "a planned restart"
resume send "$URL" "$WORK/requests" --out "$WORK/got5" >"$WORK/summary5" &
CLIENTS=$!
must "all are under way" within 60 running_is 10
sleep 0.4
end head
ok "SIGTERM ends it well" equal 0 "$RC"
head_starts --min-nodes 2
wait "$CLIENTS"
ok "every stream ends" equal 0 $?
cat "$WORK/summary5"
ok "as if nothing had happened" load compare "$WORK/want" "$WORK/got5"
ok "nothing is left" within 20 at_rest

say "clients that do not come back"
resume send "$URL" "$WORK/requests" --out "$WORK/got6" --patience 0 >/dev/null &
CLIENTS=$!
must "all are under way" within 60 running_is 10
sleep 0.3
kill9 head
kill -KILL "$CLIENTS"
wait "$CLIENTS" 2>/dev/null
head_starts --min-nodes 2 --resume-seconds 2
ok "the head goes on without them" within 30 some_tokens 1
ok "for two seconds and no longer" within 20 at_rest
ok "the journal is small" test "$(du -sk "$LOOM_STATE/journal" | cut -f1)" -lt 1000

say "another model"
resume send "$URL" "$WORK/requests" --out "$WORK/got7" --patience 5 >/dev/null &
CLIENTS=$!
must "all are under way" within 60 running_is 10
kill9 head
start head "$LOOM" serve "$MODEL" --weights q8_0 --context 2048 --listen "127.0.0.1:$HTTP" --cluster "127.0.0.1:$PORT"
wait "$CLIENTS"
ok "its answers are not mixed with the old ones" grep -q 'HTTP 404' "$WORK/got7"
finish
