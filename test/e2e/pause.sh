#!/bin/bash
# Machines whose owners take them back: pause and resume, a command that says "busy", SIGTERM. And the guardian, which
# tells the others when a process is killed.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

says() { grep -qF -- "$2" "$WORK/$1.err"; }
ask() { # WORD NAME ARGS...: what `loom node WORD` prints for the node NAME
    local word=$1 name=$2
    shift 2
    "$LOOM" node "$word" --state "$WORK/$name.state" "$@"
}
shows() { [ "$(ask show "$1" 2>/dev/null)" = "$2" ]; } # NAME TEXT
of_node() { status "[n for n in d['nodes'] if n['name'] == '$1'][0]$2"; }
number_of() { of_node "$1" '["node"]'; }
serves() { status_is "$(number_of "$1") in [s['node'] for s in d['stages']]" True; }
serves_not() { status_is "$(number_of "$1") in [s['node'] for s in d['stages']]" False; }
leaves() { # NAME "LEAVING AWAY": as the head sees it
    status_is "next('%s %s' % (n['leaving'], n['away']) for n in d['nodes'] if n['name'] == '$1')" "$2"
}
holds_nothing() { status_is "$(number_of "$1") in [h['node'] for s in d['stages'] for h in s['holders']]" False; }
epoch() { status 'd["epoch"]'; }
busy() { [ "$(status 'd["running"]')" -ge 4 ] 2>/dev/null; }

# disturbed TITLE COMMAND...: answers all requests while the command is done to the cluster.
disturbed() {
    local title=$1 sender
    shift
    rm -f "$WORK/got"
    load send "$URL" "$WORK/requests" --stream yes --out "$WORK/got" &
    sender=$!
    ok "$title: answers are being made" within 30 busy
    "$@"
    wait $sender
    ok "$title: all are answered" equal 0 $?
    ok "$title: the same bytes" load compare "$WORK/want" "$WORK/got"
    ok "$title: at rest" within 30 at_rest
}

guardian_of() { # PID
    local p
    for p in /proc/[0-9]*; do
        [ "$(cat "$p/comm" 2>/dev/null)" = loom-guard ] && [ "$(awk '{print $4}' "$p/stat" 2>/dev/null)" = "$1" ] &&
            echo "${p#/proc/}"
    done
    return 0
}

say "what it says without a node"
mkdir -p "$WORK/none.state"
"$LOOM" node show --state "$WORK/none.state" >"$WORK/none.out" 2>"$WORK/none.err"
ok "no node: exit code 1" equal 1 $?
ok "no node: one clear line" grep -q '^loom node show: no node runs with the state folder' "$WORK/none.err"
"$LOOM" node pause --nonsense >"$WORK/none.out" 2>"$WORK/none.err"
ok "a flag that is none: exit code 2" equal 2 $?
ok "help of pause" sh -c "'$LOOM' node pause --help | grep -q -- --wait"
"$LOOM" node --join 127.0.0.1:1 --busy-when '' >"$WORK/none.out" 2>"$WORK/none.err"
ok "an empty command: exit code 2" equal 2 $?

say "three nodes, one of them with a busy owner"
load make --n 8 --tokens 500 --kind long >"$WORK/requests"
must "the undisturbed answers" load run "$LOOM" "$MODEL" "$WORK/requests" --out "$WORK/want"
touch "$WORK/busy"
head_of head "$MODEL" --min-nodes 2 --context 2048
node one "$(token)" --drain-seconds 60
node two "$(token)" --drain-seconds 60
node three "$(token)" --busy-when "test -e '$WORK/busy'" --busy-every 1
ok "all have joined" within 60 nodes_are 3
ready
ok "the third leaves" within 30 shows three 'away: its owner is busy'
ok "and holds nothing" within 30 holds_nothing three
ok "the head knows that it is away" within 10 leaves three 'True True'
"$LOOM" status --url "$URL" >"$WORK/status"
ok "loom status says so, too" grep -q '^  three .*away: its machine is wanted back' "$WORK/status"
rm "$WORK/busy"
ok "it comes back when its owner is done" within 30 shows three serving
ok "and is used again" within 60 serves three
ok "the head knows that it is back" within 10 leaves three 'False False'
ok "its log tells" says three 'its owner is busy'

say "pause"
ok "one serves" serves one
EPOCH=$(epoch)
pause_one() {
    ok "pause --wait" equal 'away: paused by its owner' "$(ask pause one --wait)"
    ok "no epoch ended for it" equal "$EPOCH" "$(epoch)" # later one does, when nothing runs
}
disturbed "pause" pause_one
ok "it serves nothing" serves_not one
ok "and holds nothing" within 30 holds_nothing one
ok "it is still joined" nodes_are 3
ok "a second pause changes nothing" equal 'away: paused by its owner' "$(ask pause one)"
ok "the head counts it" status_is 'd["drained"] > 0' True
disturbed "while it is away" true
ok "resume" equal serving "$(ask resume one)"
ok "it is used again" within 60 serves one

say "busy while answers are made"
make_busy() {
    touch "$WORK/busy"
    ok "the third leaves" within 60 shows three 'away: its owner is busy'
}
disturbed "busy" make_busy
rm "$WORK/busy"
ok "it comes back" within 30 shows three serving
ok "it is used again" within 60 serves three

say "SIGTERM"
stop_two() {
    end two
    ok "it ends well" equal 0 "$RC"
}
disturbed "drain" stop_two
ok "two are left" within 30 nodes_are 2
ok "it handed over first" says two 'others take over what this node holds'
ok "its socket is gone" test ! -e "$WORK/two.state/node.sock"
node two "127.0.0.1:$PORT"
ok "it is back" within 60 nodes_are 3
ok "and serves" within 60 serves two

say "guardians"
for name in one two three; do
    GUARDIANS=$(guardian_of "${PID[$name]}")
    ok "$name has one guardian" equal 1 "$(wc -w <<<"$GUARDIANS")"
    ok "which holds its links" test "$(find "/proc/$GUARDIANS/fd" -lname 'socket:*' | wc -l)" -gt 2
done
GUARDIAN=$(guardian_of "${PID[one]}")
kill -KILL "$GUARDIAN"
ok "a node without its guardian warns" within 10 says one 'the guardian ended (signal 9)'
ok "and goes on" serves one
GUARDIAN=$(guardian_of "${PID[two]}")
kill9_two() { kill9 two; }
disturbed "SIGKILL" kill9_two
ok "the guardian ends with its process" within 10 dead "$GUARDIAN"
node two "127.0.0.1:$PORT" # what the killed one left behind is no obstacle
ok "it is back" within 60 nodes_are 3
ok "its owner can speak to it" within 10 shows two serving
GUARDIAN=$(guardian_of "${PID[two]}")
end two
ok "the guardian ends with a process that ends well" within 10 dead "$GUARDIAN"

end head
ok "the head ends" equal 0 "$RC"
for name in one three; do end "$name"; done
ok "nothing is left" within 10 test -z "$(tagged)"
finish
