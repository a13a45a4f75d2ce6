#!/bin/bash
# Peers with bad manners at the doors of the head and of the nodes: strangers, and one who stole a node's certificate.
# After each the cluster has to be as it was: nobody died, the same nodes, an answer with the same bytes; and whoever
# looks into a log finds a line about it.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"
command -v openssl >/dev/null || { echo "skipped: needs openssl"; exit 77; }

head_of head "$MODEL" --min-nodes 2 --context 2048 --node-timeout 1500
for name in one two; do node "$name" "$(token)"; done
node stolen "$(token)"
ready
nodes_listen() { # the port that the process of a node listens on
    python3 - "${PID[$1]}" <<'PY'
import os, sys
pid = sys.argv[1]
own = {os.readlink("/proc/%s/fd/%s" % (pid, f)) for f in os.listdir("/proc/%s/fd" % pid)}
for line in open("/proc/%s/net/tcp" % pid).read().splitlines()[1:]:
    w = line.split()
    if w[3] == "0A" and "socket:[%s]" % w[9] in own:
        print(int(w[1].split(":")[1], 16))
PY
}
HEAD=127.0.0.1:$PORT
NODE=127.0.0.1:$(nodes_listen one)
STOLEN=$WORK/stolen.state
end stolen
USED=$(token)
load make --n 6 --tokens 60 --kind mixed >"$WORK/requests"
must "the undisturbed answers" load run "$LOOM" "$MODEL" "$WORK/requests" --out "$WORK/want"

rss_kb() { sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\).*/\1/p' "/proc/${PID[$1]}/status"; }
answers() { load send "$URL" "$WORK/requests" --out "$WORK/got" >/dev/null && load compare "$WORK/want" "$WORK/got"; }
two_nodes() { status_is '[sorted(n["name"] for n in d["nodes"]), d["ready"]]' "[['one', 'two'], True]"; }
must "the answers before" answers
declare -A BEFORE
for name in head one two; do BEFORE[$name]=$(rss_kb "$name"); done

# The cluster is well: the same processes, both nodes, right answers, no memory that grew without bound.
well() {
    local name
    for name in head one two; do
        ok "$1: $name lives" alive "${PID[$name]}" || return 1
        ok "$1: memory of $name" test "$(rss_kb "$name")" -lt $((BEFORE[$name] + 256 * 1024))
    done
    ok "$1: both nodes are there" within 60 two_nodes
    ok "$1: the same answers" within 60 answers
}
# attack TITLE LOG PATTERN ATTACK ADDRESS ARGS...: does it, then looks at the cluster and at who should have told of it.
attack() {
    local title=$1 log=$2 pattern=$3 before
    shift 3
    before=$(wc -l <"$WORK/$log.err")
    ok "$title" sh -c 'python3 "$@" >"$0" 2>&1 || { tail -n 8 "$0"; false; }' "$WORK/attack" "$E2E/hostile.py" "$@"
    well "$title"
    [ -z "$pattern" ] || ok "$title: a line in the log of $log" says_since "$log" "$before" "$pattern"
}
says_since() {
    tail -n "+$(($2 + 1))" "$WORK/$1.err" | grep -qiE -- "$3" && return 0
    echo "  nothing like '$3' in:"
    tail -n "+$(($2 + 1))" "$WORK/$1.err" | tail -n 5
    return 1
}

say "strangers"
attack "garbage at the head" head 'no link: ' garbage "$HEAD"
attack "garbage at a node" one 'no link|closed|TLS|handshake' garbage "$NODE"
attack "TLS 1.2" head 'no link: .*(version|protocol)' old_tls "$HEAD" --state "$STOLEN"
attack "another CA at the head" head 'no link: .*(certificate|verify|CA)' wrong_ca "$HEAD"
attack "another CA at a node" one 'certificate|verify' wrong_ca "$NODE"
attack "no certificate at the head" head 'first frame|certificate' no_certificate "$HEAD"
attack "no certificate at a node" one 'certificate' no_certificate "$NODE"
attack "a wrong token" head 'token' wrong_token "$HEAD"
attack "a token used twice" head 'enrolled' replayed_token "$HEAD" --token "$USED"

say "a stolen certificate"
attack "garbage within TLS" head 'magic|LOOM|frame|format' garbage "$HEAD" --state "$STOLEN"
attack "other versions" head 'version' old_version "$HEAD" --state "$STOLEN"
attack "other versions at a node" one 'version' old_version "$NODE" --state "$STOLEN"
attack "broken frames" head '' bad_frames "$HEAD" --state "$STOLEN"
attack "broken frames at a node" one '' bad_frames "$NODE" --state "$STOLEN"
attack "frames too large" head 'bytes|limit|at most' oversized "$HEAD" --state "$STOLEN"
attack "frames too large at a node" one 'bytes|limit|at most' oversized "$NODE" --state "$STOLEN"
attack "a JOIN that makes no sense" head 'may not join' bad_join "$HEAD" --state "$STOLEN"
attack "mutated frames" head '' mutations "$HEAD" --state "$STOLEN" --n 150
attack "mutated frames at a node" one '' mutations "$NODE" --state "$STOLEN" --n 100
attack "questions without reading" head 'question|slow' slow_bulk "$HEAD" --state "$STOLEN"
attack "steps without the key" one '' attach_wrong_key "$NODE" --state "$STOLEN"

say "a node that lies"
attack "computes nothing" head 'liar' liar_silent "$HEAD" --state "$STOLEN" --n 6
attack "makes results up" head 'liar' liar_tokens "$HEAD" --state "$STOLEN" --n 4
attack "sends steps that lie" head 'liar' liar_steps "$HEAD" --state "$STOLEN" --n 12
attack "says what was not asked" head 'liar' liar_noise "$HEAD" --state "$STOLEN" --n 3
attack "does not read" head 'liar' liar_deaf "$HEAD" --state "$STOLEN" --n 4

say "many who say nothing"
python3 "$E2E/hostile.py" flood "$HEAD" --n 400 >"$WORK/flood" 2>&1 &
FLOOD=$!
stand() { grep -q stand "$WORK/flood"; }
ok "they stand" within 20 stand
node three "$(token)"
ok "a node joins all the same" within 30 nodes_are 3
ok "the answers come all the same" answers
wait $FLOOD
ok "all are closed" equal 0 $?
end three
well "a flood at the head"
attack "a flood at a node" one '' flood "$NODE" --n 300
attack "a flood with a certificate" head '' flood "$HEAD" --state "$STOLEN" --n 150

say "a copy of a node's state folder"
mkdir "$WORK/copy.state"
cp "$WORK/one.state"/node.key "$WORK/one.state"/*.crt "$WORK/copy.state"
start copy "$LOOM" node --join "$HEAD" --name copy --state "$WORK/copy.state" --listen 127.0.0.1:0 --threads 1
refused() { grep -q 'certificate is joined already' "$WORK/head.err"; }
ok "it is refused" within 20 refused
ok "two nodes" two_nodes
kill9 copy
well "a copied state folder"

say "clients that do not read"
python3 - "$URL" <<'PY' &
import json, socket, sys, time, urllib.parse
u = urllib.parse.urlparse(sys.argv[1])
body = json.dumps({"model": "loom-demo", "prompt": "1, 2, 3, 4,", "max_tokens": 1500, "n": 4, "stream": True})
held = []
for _ in range(30):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.connect((u.hostname, u.port))
    s.sendall(("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
               % (len(body), body)).encode())
    held.append(s)
time.sleep(10)
PY
SLOW=$!
sleep 2
ok "others are answered" within 60 answers
wait $SLOW
ok "nothing is left of them" within 60 at_rest
well "clients that do not read"
finish
