#!/bin/bash
# chaos.sh [SECONDS] [SEED]: 100 requests are always in flight over 4 nodes, while every 10 s one of the nodes is killed
# with SIGKILL and started anew a second later. Every answer must be what it is without disturbance, its usage too.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

SECS=${1:-30}
RANDOM=${2:-1}
AT_ONCE=100

load make --n 100 --tokens 200 --kind long >"$WORK/requests"
say "the undisturbed answers"
serve calm "$MODEL"
ready
must "they are made" load send "$URL" "$WORK/requests" --at-once 16 --stream no --out "$WORK/want"
end calm

say "$AT_ONCE requests in flight over 4 nodes for $SECS s, a kill every 10 s"
# Blocks for fewer sequences than run, so that some have to give theirs up and are computed anew, too.
head_of head "$MODEL" --min-nodes 4 --context 2048 --sequences 6
for i in 0 1 2 3; do node "node-$i" "$(token)"; done
ready
must "four stages" route_is 4
load send "$URL" "$WORK/requests" --at-once "$AT_ONCE" --stream mixed --seconds "$SECS" --out "$WORK/got" &
SENDER=$!
: >"$WORK/kills"
until=$((SECONDS + SECS))
while [ $((SECONDS + 5)) -lt "$until" ]; do
    # The first kill comes early, so that a short run has its share.
    if [ -s "$WORK/kills" ]; then sleep 9; else sleep 4; fi
    victim=node-$((RANDOM % 4))
    date +%s.%N >>"$WORK/kills"
    kill9 "$victim"
    sleep 1
    node "$victim" "127.0.0.1:$PORT"
done
wait $SENDER
ok "every request finishes" equal 0 $?
ok "every hash is that of the undisturbed answer" load compare "$WORK/want" "$WORK/got"
ok "no block is left on any stage" within 30 at_rest
ok "every kill was noticed" test "$(status 'd["nodes_lost"]')" -ge "$(wc -l <"$WORK/kills")"
for i in 0 1 2 3; do ok "node-$i is there" alive "${PID[node-$i]}"; done
ok "all four serve again" within 60 route_is 4
STATUS=$(status '"%d route changes, %d nodes lost, %d preemptions" % (d["route_changes"], d["nodes_lost"], d["preemptions"])')
load gaps "$WORK/got" "$WORK/kills" "$STATUS"
finish
