#!/bin/bash
# `loom serve`: the endpoint as clients see it, what becomes of those who hang up, and what it says without machines.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

CHAT=/v1/chat/completions
TEXT=/v1/completions
body() { # PYTHON MEMBERS: a chat request
    python3 -c "import json, sys
print(json.dumps({'model': 'loom-demo', 'temperature': 0, 'chat_template_kwargs': {'enable_thinking': False},
    'messages': [{'role': 'user', 'content': 'Tell me a story about a dog named Gus.'}], **dict($1)}))"
}
ask() { post "$CHAT" "$(body "$1")" >"$WORK/answer"; }
got() { value "$1" <"$WORK/answer"; }

# A stream that does not end before it is looked at, on a machine however fast: 16 times some 400 tokens.
endless() { # N
    body "stream=True, max_tokens=1900, messages=[{'role': 'user', 'content': 'Count from $1 to 1000'}], n=16"
}
# In the background, as a client that can be killed: $STREAM.
open_stream() { # BODY-FILE ANSWER-FILE
    curl -s -N -m 120 -H 'Content-Type: application/json' -d "@$1" "$URL$CHAT" >"$2" 2>/dev/null &
    STREAM=$!
}

# is_error STATUS CODE PARAM: the last answer is an error of this shape with a message.
is_error() {
    equal "$1 $2 $3" "$(code) $(got '"%s %s" % (d["error"]["code"], d["error"]["param"])')" &&
        [ -n "$(got 'd["error"]["message"]')" ] && [ -n "$(got 'd["error"]["type"]')" ]
}

say "nobody is there yet"
head_of lonely "$MODEL" --wait-for-node 3
ok "/health says 503" equal 503 "$(curl -s -o /dev/null -w '%{http_code}' "$URL/health")"
ask 'max_tokens=4'
ok "no machines: 503" is_error 503 unavailable None
ok "with Retry-After" grep -qi '^retry-after: [0-9]' "$WORK/headers"
ok "status tells it too" status_is 'd["ready"]' False

say "the first node comes, and goes"
node first "$(token)"
ready
REAL=$(curl -s "$URL/v1/models" | value 'd["data"][0]["id"]')
ok "/v1/models" equal loom-demo "$REAL"
ask 'max_tokens=40'
WANT=$(got 'd["choices"][0]["message"]["content"]')
endless 1 >"$WORK/long"
open_stream "$WORK/long" "$WORK/stream"
streams() { grep -q '"content":"[^"]' "$WORK/stream"; }
must "the stream begins" within 30 streams
kill9 first
gone_for_good() { dead "$STREAM"; }
ok "the stream ends when no machine comes" within 60 gone_for_good
ok "it ends with an error that says why" grep -q '^data: {"error":.*no machine came' "$WORK/stream"
ok "and not with [DONE]" sh -c "! grep -q DONE '$WORK/stream'"
ask 'max_tokens=4'
ok "new ones are refused" is_error 503 unavailable None
ok "with Retry-After" grep -qi '^retry-after: [0-9]' "$WORK/headers"

say "a new node brings it back, even into waiting answers"
node second "$(token)"
ready
ask 'max_tokens=40'
ok "the same answer as before" equal "$WANT" "$(got 'd["choices"][0]["message"]["content"]')"
ok "at rest" within 20 at_rest
end lonely
ok "SIGTERM: exit code 0" equal 0 "$RC"
end second
ok "no process is left" equal "" "$(tagged)"

say "three nodes on this machine"
serve local "$MODEL" --local-nodes 3 --threads 1 --context 2048 --resume-seconds 0
ready
ok "three stages" route_is 3

ask 'max_tokens=40'
TEXT_OF=$(got 'd["choices"][0]["message"]["content"]')
ok "the same answer again" equal "$WANT" "$TEXT_OF"
ok "its shape" equal "chat.completion assistant length 40 True" "$(got '"%s %s %s %d %s" % (d["object"],
    d["choices"][0]["message"]["role"], d["choices"][0]["finish_reason"], d["usage"]["completion_tokens"],
    d["usage"]["total_tokens"] == d["usage"]["prompt_tokens"] + 40)')"
post "$CHAT" "$(body 'max_tokens=40, stream=True, stream_options={"include_usage": True}')" -N >"$WORK/stream"
python3 - "$WORK/stream" >"$WORK/answer" <<'END'
import json, sys
events = [l[6:].rstrip("\n") for l in open(sys.argv[1], encoding="utf-8") if l.startswith("data: ")]
assert events[-1] == "[DONE]"
events = [json.loads(e) for e in events[:-1]]
text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
assert events[0]["choices"][0]["delta"]["role"] == "assistant"
assert events[-1]["choices"] == [] and all(e["usage"] is None for e in events[:-1])
assert len({e["id"] for e in events}) == 1 and all(e["object"] == "chat.completion.chunk" for e in events)
print(json.dumps({"text": text, "usage": events[-1]["usage"], "finish": events[-2]["choices"][0]["finish_reason"]}))
END
ok "streamed, the same" equal "$WANT|length|40" "$(got '"%s|%s|%d" % (d["text"], d["finish"], d["usage"]["completion_tokens"])')"

ask 'max_tokens=40, stop=["never said", " named"]'
ok "stop" equal "${WANT%% named*}|stop" "$(got '"%s|%s" % (d["choices"][0]["message"]["content"], d["choices"][0]["finish_reason"])')"
ask 'n=2, temperature=1.2, seed=7, top_p=1, top_k=0, max_tokens=24'
ok "n=2" equal "[0, 1] 48 True" "$(got '"%s %d %s" % ([c["index"] for c in d["choices"]], d["usage"]["completion_tokens"],
    d["choices"][0]["message"]["content"] != d["choices"][1]["message"]["content"])')"
BOTH=$(got '[c["message"]["content"] for c in d["choices"]]')
ask 'n=2, temperature=1.2, seed=7, top_p=1, top_k=0, max_tokens=24'
ok "the same seed again" equal "$BOTH" "$(got '[c["message"]["content"] for c in d["choices"]]')"
ask 'temperature=1.2, seed=7, top_p=1, top_k=0, max_tokens=24'
ok "the first of n is what n=1 gives" equal "$BOTH" \
    "[$(got 'repr(d["choices"][0]["message"]["content"])'), $(python3 -c "print(repr((${BOTH})[1]))")]"
ask 'temperature=1.2, max_tokens=16'
ONE=$(got 'd["choices"][0]["message"]["content"]')
ask "temperature=1.2, max_tokens=16, seed=$(got 'd["seed"]')"
ok "the seed that was chosen is told" equal "$ONE" "$(got 'd["choices"][0]["message"]["content"]')"
post "$TEXT" '{"model":"loom-demo","prompt":"1, 2, 3, 4, 5, 6,","temperature":0,"max_tokens":5}' >"$WORK/answer"
ok "completions" equal "text_completion 5" "$(got '"%s %d" % (d["object"], d["usage"]["completion_tokens"])')"
ONE=$(got 'd["choices"][0]["text"]')
post "$TEXT" '{"model":"loom-demo","prompt":["1, 2, 3, 4, 5, 6,","1, 2, 3, 4, 5, 6,"],"temperature":0,"max_tokens":5}' >"$WORK/answer"
ok "several prompts" equal "['$ONE', '$ONE']" "$(got '[c["text"] for c in d["choices"]]')"

say "what is refused"
ask 'frequency_penalty=1'
ok "a parameter that is not supported" is_error 400 unsupported_parameter frequency_penalty
ask 'frobnicate=1'
ok "one that nobody knows" is_error 400 unknown_parameter frobnicate
ask 'temperature="hot"'
ok "a wrong type" is_error 400 invalid_type temperature
ask 'temperature=3'
ok "out of range" is_error 400 invalid_value temperature
ask 'messages=[{"role": "king", "content": "A"}]'
ok "an unknown role" equal 400 "$(code)"
ask 'max_tokens=2048'
ok "more than the window" is_error 400 context_length_exceeded messages
ok "with both numbers" grep -q '2048.*20[0-9][0-9]' "$WORK/answer"
ask 'messages=[{"role": "user", "content": "word " * 3000}]'
ok "a prompt over the window" is_error 400 context_length_exceeded messages
post "$CHAT" '{"model": "loom-demo", "messages": [' >"$WORK/answer"
ok "JSON cut off" is_error 400 invalid_json None
post "$CHAT" "$(body 'model="gpt-4"')" >"$WORK/answer"
ok "another model" equal 404 "$(code)"
ok "an unknown path" equal 404 "$(curl -s -o /dev/null -w '%{http_code}' "$URL/v1/nothing")"
ok "a wrong method" equal 405 "$(curl -s -o /dev/null -w '%{http_code}' "$URL$CHAT")"
ok "at rest after all that" within 20 at_rest

say "clients that hang up"
for i in 1 2 3 4 5 6; do
    endless "$i" >"$WORK/long$i"
    open_stream "$WORK/long$i" "$WORK/stream$i"
    STREAMS[i]=$STREAM
done
all_stages_work() { [ "$(status 'min(n["blocks_used"] for n in d["nodes"])')" -gt 20 ] 2>/dev/null; }
must "all stages hold blocks" within 60 all_stages_work
GONE=$(date +%s%N)
{ kill -KILL "${STREAMS[@]}" && wait "${STREAMS[@]}"; } 2>/dev/null
ok "no stage holds a block any more" within 15 at_rest
echo "blocks were free on all stages $((($(date +%s%N) - GONE) / 1000000)) ms after the clients were killed"
all_counted() { [ "$(curl -s "$URL/metrics" | sed -n 's/^loom_http_disconnects_total //p')" -ge 6 ]; }
ok "the metrics count them" within 20 all_counted
for name in loom_ready loom_nodes loom_kv_blocks loom_tokens_total loom_http_requests_total loom_promotions_total loom_waited_total 'loom_holders{role="shadow"} 3'; do
    ok "metric $name" sh -c "curl -s '$URL/metrics' | grep -q '^$name'"
done

say "loom chat and loom status"
ok "chat -p" equal "$("$LOOM" run "$MODEL" --chat 'Please work out 25/5' --temp 0)" \
    "$("$LOOM" chat --url "$URL" -p 'Please work out 25/5' --temp 0)"
printf 'My name is Ada. I live in Paris and I have a owl.\nWhat animal do I have?\n' | "$LOOM" chat --url "$URL" --temp 0 >"$WORK/chat"
ok "chat remembers" grep -q owl "$WORK/chat"
ok "chat without a server" sh -c "! '$LOOM' chat --url http://127.0.0.1:1 -p A 2>/dev/null"
ok "status" "$LOOM" status --url "$URL" >"$WORK/out"
ok "status names the nodes" equal 3 "$(grep -c 'node-[0-2] .*serving' "$WORK/out")"
ok "and their shadows" equal 3 "$(grep -c 'node-[0-2] .*shadow' "$WORK/out")"
ok "a kind of redundancy that there is not: 2" sh -c "'$LOOM' serve '$MODEL' --redundancy both 2>/dev/null; test \$? -eq 2"
ok "status --json" equal "$(status 'd["epoch"]')" "$("$LOOM" status --url "$URL" --json | value 'd["epoch"]')"
ok "status of nobody: 1" sh -c "'$LOOM' status --url http://127.0.0.1:1 2>/dev/null; test \$? -eq 1"

say "a local node that dies comes back"
PIDS_BEFORE=$(tagged | sort)
VICTIM=$(pgrep -P "${PID[local]}" -f -- '--name node-1' | head -n 1)
kill -KILL "$VICTIM"
lost_one() { [ "$(status 'd["nodes_lost"]')" -ge 1 ]; }
ok "it is missed" within 30 lost_one
ok "it is started anew" within 30 nodes_are 3
ok "the answers go on" within 60 is_ready
ask 'max_tokens=40'
ok "with the same bytes" equal "$WANT" "$(got 'd["choices"][0]["message"]["content"]')"
ok "another process now" test "$PIDS_BEFORE" != "$(tagged | sort)"

say "the end"
open_stream "$WORK/long1" "$WORK/stream"
must "a stream runs" within 30 streams
end local
ok "SIGTERM: exit code 0" equal 0 "$RC"
ok "the stream was ended with an error event" sh -c "wait $STREAM 2>/dev/null; grep -q '^data: {\"error\"' '$WORK/stream'"
nobody() { [ -z "$(tagged)" ]; }
ok "no process is left" within 10 nobody
finish
