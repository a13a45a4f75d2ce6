#!/bin/bash
# Heads and nodes as processes: joining with tokens, fetching weights, and every way to lose a machine.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

# says NAME TEXT: it is in the node's log.
says() { grep -qF -- "$2" "$WORK/$1.err"; }
bytes_in() { du -sb "$1" | cut -f1; }
weights() { cat "$MODEL"/*.safetensors | wc -c; }
# has_left NAME CODE: the process ended by itself, with this exit code.
has_left() {
    within 30 dead "${PID[$1]}" || { echo "  $1 still runs"; return 1; }
    wait "${PID[$1]}" 2>/dev/null
    equal "$2" $?
}
layers() { status '[s["layers"] for s in d["stages"]]'; }

say "joining"
head_of head "$MODEL" --min-nodes 3 --node-timeout 1500 --context 2048
TOKEN=$(token)
ok "a token is one word" test "$(printf %s "$TOKEN" | tr -d 'a-z0-9-' | wc -c)" -eq 0
node one "$TOKEN"
ok "one joins" within 30 nodes_are 1
ok "not ready before three have joined" status_is 'd["ready"]' False
node thief "$TOKEN" --once
ok "a token that was used is refused" has_left thief 1
ok "in one clear line" grep -qi '^loom node: .*token.*used up' "$WORK/thief.err"
node wrong "${TOKEN%????}aaaa" --once
ok "a token that was copied badly" has_left wrong 2
ok "says so" grep -qi 'token' "$WORK/wrong.err"
HOURS=$(token --hours 1)
# Its expiry is the last word of the last line.
sed -i '$s/[0-9]*$/1/' "$LOOM_STATE/tokens"
node late "$HOURS" --once
ok "a token that is too old" has_left late 1
ok "says so, too" grep -qi 'token.*expired' "$WORK/late.err"
node stranger "127.0.0.1:$PORT" --once
ok "without a token, a node that is not known" has_left stranger 1
ok "is told what to do" grep -qi 'token' "$WORK/stranger.err"
LOOM_STATE="$WORK/foreign" "$LOOM" token create --address "127.0.0.1:$PORT" >"$WORK/foreign_token"
node foreign "$(cat "$WORK/foreign_token")" --once
ok "a token of another cluster" has_left foreign 1
node two "$(token)"
ok "the second joins" within 30 nodes_are 2
node three "$(token)"
ready
ok "three stages, split by memory" equal "[[0, 3], [3, 7], [7, 12]]" "$(layers)"
ok "nobody else" nodes_are 3
all_have_shadows() { status_is '[[h["role"] for h in s["holders"]] for s in d["stages"]] == [["serving", "shadow"]] * len(d["stages"])' True; }
ok "each with a shadow" within 60 all_have_shadows
ok "each node serves one of them" status_is 'sorted(n["name"] for s in d["stages"] for n in d["nodes"] if n["node"] == s["node"])' "['one', 'three', 'two']"

say "what they fetched"
for name in one two three; do
    ok "$name keeps only what it holds" test "$(bytes_in "$WORK/$name.state")" -lt $(($(weights) * 9 / 10))
    ok "$name keeps them" test "$(bytes_in "$WORK/$name.state")" -gt $(($(weights) / 6))
done
ok "status as text" sh -c "'$LOOM' status --url '$URL' | grep -q 'three.* 7-11 .*serving'"
ok "with the shadow" sh -c "'$LOOM' status --url '$URL' | grep -q ' 7-11 .*shadow'"
"$LOOM" status --url "$URL" --json >"$WORK/status"
ok "status as JSON" equal "three 3" "$(value '"%s %d" % (d["nodes"][2]["name"], len(d["stages"]))' <"$WORK/status")"
load make --n 8 --tokens 120 --kind long >"$WORK/requests"
must "the undisturbed answers" load run "$LOOM" "$MODEL" "$WORK/requests" --out "$WORK/want"
ok "they answer" load send "$URL" "$WORK/requests" --stream yes --out "$WORK/got"
ok "the same bytes as in one process" load compare "$WORK/want" "$WORK/got"

say "a node comes back by the address alone, and loads from its cache"
end one
ok "SIGTERM: exit code 0" equal 0 "$RC"
ok "it is gone" within 30 nodes_are 2
node one "127.0.0.1:$PORT"
ok "it is known" within 30 nodes_are 3
# Without it there are three stages, too: the others take over what it held.
three_serve() { route_is 3 && status_is 'len({s["node"] for s in d["stages"]})' 3; }
ok "and used again" within 60 three_serve
# It may get another stage each time; after a few it has had them all.
leave_and_return() {
    end one
    ok "it is gone again" within 30 nodes_are 2
    BEFORE=$(bytes_in "$WORK/one.state")
    node one "127.0.0.1:$PORT"
    ok "it is back again" within 60 three_serve
    [ "$BEFORE" = "$(bytes_in "$WORK/one.state")" ]
}
for _ in 1 2 3 4 5; do
    leave_and_return && break
done
ok "nothing new in the cache" equal "$BEFORE" "$(bytes_in "$WORK/one.state")"
ok "nothing fetched but the little that steps need" test "$(status 'int([n["sent_bytes"] for n in d["nodes"] if n["name"] == "one"][0] < 4000000)')" = 1

# disturbed TITLE COMMAND...: answers all requests while the command is done to the cluster.
disturbed() {
    local title=$1
    shift
    rm -f "$WORK/got"
    load send "$URL" "$WORK/requests" --stream yes --out "$WORK/got" &
    local sender=$!
    ok "$title: answers are being made" within 30 busy
    "$@"
    wait $sender
    ok "$title: all are answered" equal 0 $?
    ok "$title: the same bytes" load compare "$WORK/want" "$WORK/got"
    ok "$title: at rest" within 30 at_rest
}
busy() { [ "$(status 'd["running"]')" -ge 4 ] 2>/dev/null; }
load make --n 8 --tokens 500 --kind long >"$WORK/requests"
must "the undisturbed answers" load run "$LOOM" "$MODEL" "$WORK/requests" --out "$WORK/want"

say "kill -9 of a node, and a new one in its place"
ok "each stage has its shadow" within 60 all_have_shadows
EPOCH=$(status 'd["epoch"]')
WERE=$(status 'd["promotions"]')
kill_two() {
    kill9 two
    ok "its shadow serves" within 30 promoted
    ok "without a new route" status_is 'd["epoch"]' "$EPOCH"
}
promoted() { [ "$(status 'd["promotions"]')" -gt "$WERE" ] 2>/dev/null; }
disturbed "SIGKILL" kill_two
ok "no step waited for a shadow" status_is 'd["waited"]' 0
ok "two stages are left" within 30 route_is 2
node two "127.0.0.1:$PORT"
ok "it comes back" within 60 three_serve

say "kill -9 of two nodes"
kill_both() { kill9 two; kill9 three; }
disturbed "two SIGKILLs" kill_both
node two "127.0.0.1:$PORT"
node three "127.0.0.1:$PORT"
ok "they come back" within 60 three_serve

say "a node hangs"
stop_three() { kill -STOP "${PID[three]}"; }
disturbed "SIGSTOP" stop_three
kill -CONT "${PID[three]}"
ok "it wakes and is taken back" within 60 three_serve

say "a node is told to leave"
term_two() { end two; }
disturbed "SIGTERM" term_two

say "all nodes die, one comes back in time"
kill_all() {
    kill9 one
    kill9 three
    sleep 1
    node two "127.0.0.1:$PORT"
}
disturbed "no machine for a second" kill_all
node three "127.0.0.1:$PORT" --once
ok "another one joins" within 30 nodes_are 2

say "the head dies"
kill9 head
ok "--once: the node leaves, which is no failure" has_left three 0
ok "without --once it waits" alive "${PID[two]}"
PORT_WAS=$PORT
start head "$LOOM" serve "$MODEL" --listen 127.0.0.1:0 --cluster "127.0.0.1:$PORT_WAS" --context 2048
must "the head listens again" within 60 has_url head
ready "the head, with the node that waited,"
ok "the answers go on" load send "$URL" "$WORK/requests" --out "$WORK/got"
ok "the same bytes" load compare "$WORK/want" "$WORK/got"

say "weights from a folder"
node folder "$(token)" --model "$MODEL"
ok "it joins" within 30 nodes_are 2
two_stages() { route_is 2; }
ok "it is used" within 60 two_stages
ok "its cache stays empty" test "$(bytes_in "$WORK/folder.state")" -lt 200000

say "a node that is too small"
NODE_MEMORY=1M node tiny "$(token)"
ok "it joins" within 30 nodes_are 3
left_out() { status_is 'len(d["left_out"])' 1; }
end folder
ok "it is left out of the next route" within 30 left_out
ok "with the reason in numbers" sh -c "'$LOOM' status --url '$URL' | grep -q 'tiny.*[MG]iB free'"
for name in tiny two head; do end "$name"; done
nobody() { [ -z "$(tagged)" ]; }
ok "no process is left" within 10 nobody
finish
