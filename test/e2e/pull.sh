#!/bin/bash
# `loom pull`: from a hub on the loopback that redirects, breaks off, and lies.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

REPOS="$WORK/repos"
LOG="$WORK/hub.log"
OUT="$WORK/out"
unset HF_TOKEN MODELSCOPE_ENDPOINT MODELSCOPE_API_TOKEN

# The models of the hub: one folder with safetensors and what nobody needs, one with GGUF files.
demo=$REPOS/loom/loom-demo
mkdir -p "$demo/onnx" "$demo/original" "$REPOS/loom/tiny-GGUF/Q8_0" "$REPOS/loom/odd"
cp "$MODEL"/* "$demo/"
for f in pytorch_model.bin onnx/model.onnx original/model.safetensors README.md; do head -c 3000 /dev/urandom >"$demo/$f"; done
printf x >"$demo/additional file.txt"
for f in tiny-Q4_K_M tiny-UD-Q4_K_M tiny-Q6_K Q8_0/tiny-Q8_0-00001-of-00002 Q8_0/tiny-Q8_0-00002-of-00002 mmproj-F16; do
    head -c 150000 /dev/urandom >"$REPOS/loom/tiny-GGUF/$f.gguf"
done
printf '{}' >"$REPOS/loom/odd/config.json"
: >"$REPOS/loom/odd/empty.safetensors"
head -c 500 /dev/urandom >"$REPOS/loom/odd/model.safetensors"

start hub python3 "$(dirname "$0")/lib_hub.py" "$REPOS" "$LOG"
has_ports() { [ -s "$WORK/hub.out" ]; }
must "the hub says where it listens" within 20 has_ports
HUB=$(cut -d' ' -f1 "$WORK/hub.out")
export HF_ENDPOINT="http://127.0.0.1:$HUB"

behave() { # JSON: from here on, and nothing else
    local defaults='{"page":1000,"rate":0,"drops":0,"fails":0,"fails_api":0,"gated":false,"no_ranges":false,"loop":false,
        "no_hashes":false,"wrong_sha":"","wrong_size":"","more":"","corrupt":"","other_total":"","hidden":"","paths":[],
        "held":"","sha":null,"leads_to":"","retry_after":"","by":7}'
    curl -sf -m 10 --noproxy '*' -d "$defaults" "$HF_ENDPOINT/control" >"$WORK/null" &&
        curl -sf -m 10 --noproxy '*' -d "${1:-{\}}" "$HF_ENDPOINT/control" >"$WORK/null"
    : >"$LOG"
}
logged() { # EXPRESSION of the list `d` of answers
    python3 -c "import json, sys
d = [json.loads(line) for line in open(sys.argv[1])]
print($1)" "$LOG"
}
pull() { timeout 120 "$LOOM" pull "$@" >"$WORK/pull.out" 2>"$WORK/pull.err"; }
code_of() { # COMMAND...
    "$@"
    echo $?
}
says() { grep -qF -- "$1" "$WORK/pull.err" && return 0; echo "  want '$1' in: $(cat "$WORK/pull.err")"; return 1; }
# fails CODE TEXT ARGS...: exit code, one line on stderr that holds TEXT, nothing on stdout.
fails() {
    local code=$1 text=$2
    shift 2
    equal "$code" "$(code_of pull "$@")" && says "$text" && [ ! -s "$WORK/pull.out" ] &&
        equal 1 "$(grep -vc '^loom pull: .*: trying again in ' "$WORK/pull.err")"
}
same_demo() { # DIR
    local f
    for f in "$MODEL"/*; do cmp "$f" "$1/$(basename "$f")" || return 1; done
}
no_parts() { [ ! -e "$1" ] || [ -z "$(find "$1" -name '*.part' -o -name '*.state')" ]; }
fresh() { rm -rf "$OUT"; }

say "a folder"
behave '{"page": 3}'
must "pull" pull loom/loom-demo --out "$OUT"
ok "prints the folder" equal "$OUT" "$(cat "$WORK/pull.out")"
must "every byte" same_demo "$OUT"
ok "nothing else" equal "$(ls "$MODEL")" "$(ls "$OUT")"
ok "nothing unfinished" no_parts "$OUT"
ok "no progress but on a terminal" equal 1 "$(wc -l <"$WORK/pull.err")"
ok "the listing came in pages" test "$(logged 'sum("cursor=" in a["path"] for a in d)')" -ge 3
ok "large files came in ranges" test "$(logged 'sum(a["status"] == 206 for a in d)')" -ge 5
ok "all of one commit" equal 0 "$(logged 'sum("/resolve/main/" in a["path"] for a in d)')"
ok "nothing was fetched twice" equal True \
    "$(logged "sum(a['sent'] for a in d if a['port'] == 'cdn') <= $(cat "$MODEL"/* | wc -c)")"
answer() { "$LOOM" run "$1" -p 'Once upon a time there was a dog' --temp 0 -n 16; }
ANSWER=$(answer "$MODEL")
ok "the original answers" test -n "$ANSWER"
ok "the model runs, and says the same" equal "$ANSWER" "$(answer "$OUT")"

say "once more"
behave
ok "pull" pull loom/loom-demo --out "$OUT"
ok "says that nothing is to do" says "already complete"
ok "and asks for no file" equal 0 "$(logged 'sum("/resolve/" in a["path"] for a in d)')"
rm -r "$OUT/.loom-pull"
ok "without a record" pull loom/loom-demo --out "$OUT"
ok "the hashes tell" says "already complete"
ok "without asking" equal 0 "$(logged 'sum("/resolve/" in a["path"] for a in d)')"
printf 'y' | dd of="$OUT/model-00002-of-00002.safetensors" bs=1 seek=1000 conv=notrunc status=none
ok "a file that somebody changed" pull loom/loom-demo --out "$OUT"
ok "is fetched again" says "1 of them fetched now"
ok "and right" same_demo "$OUT"
printf ' ' >>"$OUT/config.json"
ok "a file that somebody edited" pull loom/loom-demo --out "$OUT"
ok "is named before it goes" says "config.json: what stands there is not the hub's: it will be replaced"
ok "and goes" same_demo "$OUT"
cd "$WORK" || exit 1
case $LOOM in /*) ;; *) LOOM=$OLDPWD/$LOOM ;; esac
ok "the default folder" pull loom/odd
ok "is named after the model" test -f "$WORK/odd/model.safetensors"
ok "an empty file" test -e "$WORK/odd/config.json"
cd "$OLDPWD" || exit 1
ok "--quiet" pull loom/odd --out "$WORK/odd" --quiet
ok "says nothing" test ! -s "$WORK/pull.err"

say "broken connections"
fresh
behave '{"drops": 12, "drop_after": 600000}'
ok "pull" pull loom/loom-demo --out "$OUT"
ok "every byte" same_demo "$OUT"
ok "12 were cut off" test "$(logged 'sum(a["port"] == "cdn" for a in d)')" -gt 12
fresh
behave '{"drops": 6, "drop_after": 600000, "no_ranges": true}'
ok "pull without ranges" pull loom/loom-demo --out "$OUT" --connections 2
ok "every byte" same_demo "$OUT"
fresh
behave '{"drops": 1000, "drop_after": 600000, "no_ranges": true}'
ok "the same bytes once more" equal 1 "$(code_of pull loom/loom-demo --out "$OUT" --connections 2 --retries 2)"
ok "are no progress" says "the same command goes on"
fresh
# The last file is slow, so that there is time to note what came of the held one, and to go on after it.
behave '{"held": "config.json", "rate": 700000}'
ok "an answer that does not end" pull loom/loom-demo --out "$OUT"
ok "every byte" same_demo "$OUT"
ok "nothing unfinished" no_parts "$OUT"
fresh
behave '{"fail": 503, "fails": 2, "fail_api": 500, "fails_api": 1, "retry_after": "1"}'
ok "503 and 500" pull loom/loom-demo:config.json --out "$OUT"
ok "are tried again" says "trying again"
behave '{"fail": 429, "fails": 1, "retry_after": "100000"}'
ok "Retry-After of a day" fails 1 "100000 seconds" loom/loom-demo:tokenizer.json --out "$OUT"
behave '{"fail": 503, "fails": 9}'
ok "--retries" fails 1 "503" loom/loom-demo:tokenizer.json --out "$OUT" --retries 1

say "killed, stopped, and started again"
DEMO_BYTES=$(cat "$MODEL"/*.safetensors | wc -c)
# interrupted: a slow pull that has noted a part of the first large file.
interrupted() {
    fresh
    behave '{"rate": 700000}'
    start slow "$LOOM" pull loom/loom-demo --out "$OUT"
    noted() { grep -qs '^done ' "$OUT/.loom-pull/model-00001-of-00002.safetensors.state"; }
    must "a state is noted" within 30 noted
}
rest_is_fetched() {
    behave
    ok "goes on" pull loom/loom-demo --out "$OUT"
    ok "every byte" same_demo "$OUT"
    ok "only what was missing" test "$(logged 'sum(a["sent"] for a in d if a["port"] == "cdn")')" -lt "$DEMO_BYTES"
    ok "nothing unfinished" no_parts "$OUT"
}
interrupted
kill9 slow
ok "nothing stands under its name too early" test ! -e "$OUT/model-00001-of-00002.safetensors"
rest_is_fetched
interrupted
end slow INT
ok "Ctrl-C is exit code 1" equal 1 "$RC"
cp "$WORK/slow.err" "$WORK/pull.err"
ok "and says how to go on" says "the same command goes on"
rest_is_fetched
interrupted
kill9 slow
printf 'damaged' >>"$OUT/.loom-pull/model-00001-of-00002.safetensors.state"
behave
ok "a damaged state" pull loom/loom-demo --out "$OUT"
ok "is as if there were none" same_demo "$OUT"

say "a file that changes meanwhile"
for hashes in false true; do
    interrupted
    kill9 slow
    head -c 13908904 /dev/urandom >"$demo/model-00001-of-00002.safetensors"
    behave "{\"no_hashes\": $hashes}"
    ok "goes on, no_hashes $hashes" pull loom/loom-demo --out "$OUT"
    ok "with the new content" cmp "$demo/model-00001-of-00002.safetensors" "$OUT/model-00001-of-00002.safetensors"
    cp "$MODEL/model-00001-of-00002.safetensors" "$demo/"
done
ok "a hub without hashes is told" says "named no hash"
# The state knows the content by its ETag alone.
no_hash_interrupted() {
    fresh
    behave '{"rate": 700000, "no_hashes": true}'
    start slow "$LOOM" pull loom/loom-demo --out "$OUT"
    must "a state is noted" within 30 noted
    kill9 slow
}
no_hash_interrupted
behave '{"no_hashes": true}'
ok "the same ETag goes on" pull loom/loom-demo --out "$OUT"
ok "every byte" same_demo "$OUT"
ok "only what was missing" test "$(logged 'sum(a["sent"] for a in d if a["port"] == "cdn")')" -lt "$DEMO_BYTES"
no_hash_interrupted
head -c 13908904 /dev/urandom >"$demo/model-00001-of-00002.safetensors"
behave '{"no_hashes": true}'
ok "another ETag" pull loom/loom-demo --out "$OUT"
ok "begins anew" says "it changed"
ok "with the new content" cmp "$demo/model-00001-of-00002.safetensors" "$OUT/model-00001-of-00002.safetensors"
cp "$MODEL/model-00001-of-00002.safetensors" "$demo/"

say "two at once"
interrupted
start second "$LOOM" pull loom/loom-demo --out "$OUT"
waits() { grep -qs 'another loom pull' "$WORK/second.err"; }
ok "the second waits, and says so" within 20 waits
behave
both_end() { dead "${PID[slow]}" && dead "${PID[second]}"; }
ok "both end" within 90 both_end
ok "the second found all" grep -q 'already complete' "$WORK/second.err"
ok "every byte" same_demo "$OUT"

say "lies"
BIG=model-00002-of-00002.safetensors
gone() { [ ! -e "$OUT" ] || { [ ! -e "$OUT/$1" ] && [ -z "$(find "$OUT" -name "$1.*")" ]; }; }
fresh
behave "{\"wrong_sha\": \"$BIG\"}"
ok "a wrong sha256" fails 1 "expected sha256:" loom/loom-demo --out "$OUT"
ok "names both" says "got sha256:$(sha256sum "$MODEL/$BIG" | cut -d' ' -f1)"
ok "names the file" says "$BIG"
ok "the file is removed" gone "$BIG"
behave
ok "an honest hub helps" pull loom/loom-demo --out "$OUT"
ok "every byte" same_demo "$OUT"
for lie in corrupt wrong_size other_total; do
    fresh
    behave "{\"$lie\": \"$BIG\"}"
    ok "$lie" fails 1 "$BIG" "loom/loom-demo:$BIG" --out "$OUT"
    ok "$lie: the file is removed" gone "$BIG"
done
fresh
behave '{"wrong_sha": "config.json"}'
ok "a wrong git hash" fails 1 "expected git-sha1:" loom/loom-demo:config.json --out "$OUT"
behave '{"more": "config.json"}'
ok "more bytes than announced" fails 1 "sends more" loom/loom-demo:config.json --out "$OUT"
ok "are cut off" gone config.json
behave '{"hidden": "config.json"}'
ok "listed, but not there" fails 1 "404" loom/loom-demo:config.json --out "$OUT"
ok "of nothing, nothing is kept" no_parts "$OUT"
behave '{"loop": true}'
ok "redirects without end" fails 1 "redirects" loom/loom-demo:config.json --out "$OUT"
behave '{"leads_to": "file:///etc/hostname"}'
ok "a redirect to a file" fails 1 "config.json: the hub: Protocol" loom/loom-demo:config.json --out "$OUT"
ok "of nothing, nothing is kept" no_parts "$OUT"
for path in ../evil /etc/evil 'a\\b' 'a//b' 'x/../../evil' '.loom-pull/lock' 'a\u0000b' './a'; do
    behave "{\"paths\": [\"$path\"]}"
    ok "a listing with $path" fails 1 "listing" loom/loom-demo --out "$WORK/never"
done
ok "and nothing was made" test ! -e "$WORK/never"

for sha in '"main"' '["a"]' '"ABCDEFABCDEFABCDEFABCDEFABCDEFABCDEFABCD"'; do
    behave "{\"sha\": $sha}"
    ok "a commit that is none: $sha" fails 1 "which commit" loom/loom-demo --out "$WORK/never"
done
ok "nothing was made of it" test ! -e "$WORK/never"
behave '{"hidden": "config.json"}'
ok "the only file cannot be had" fails 1 "404" loom/loom-demo:config.json --out "$WORK/never"
ok "no empty folder stays" test ! -e "$WORK/never"
mkdir "$WORK/mine"
ok "in a folder that was there" fails 1 "404" loom/loom-demo:config.json --out "$WORK/mine"
ok "nothing of ours stays" equal "" "$(ls -A "$WORK/mine")"

say "names of files"
behave
ok "a page's address" pull "https://huggingface.co/loom/odd/tree/main" --out "$WORK/page"
ok "is the model" test -f "$WORK/page/model.safetensors"
ok "a file's address" pull "https://huggingface.co/loom/loom-demo/blob/main/config.json" --out "$WORK/page_file"
ok "is that file" equal config.json "$(ls "$WORK/page_file")"
ok "a page elsewhere" fails 2 "OWNER/NAME" https://example.com/loom/odd --out "$OUT"
ok "a page of the other hub" fails 2 "--from" https://huggingface.co/loom/odd --from modelscope --out "$OUT"
MODELSCOPE_ENDPOINT=$HF_ENDPOINT ok "a page of ModelScope" pull https://modelscope.cn/models/loom/odd --out "$WORK/page_ms"
ok "is the model, too" test -f "$WORK/page_ms/model.safetensors"
ok "a type of a folder" fails 1 "without ':Q4_K_M'" loom/loom-demo:Q4_K_M --out "$OUT"
ok "several types, none named" fails 2 "Q4_K_M 150.0 KB" loom/tiny-GGUF --out "$OUT"
ok "shards count together" says "Q8_0 300.0 KB"
ok "a projector is no model" sh -c "! grep -q F16 '$WORK/pull.err'"
ok "a type" pull loom/tiny-GGUF:q4_k_m --out "$OUT"
ok "is one file" equal "$OUT/tiny-Q4_K_M.gguf" "$(cat "$WORK/pull.out")"
ok "a split one" pull loom/tiny-GGUF:Q8_0 --out "$OUT"
ok "brings all shards" cmp "$REPOS/loom/tiny-GGUF/Q8_0/tiny-Q8_0-00002-of-00002.gguf" "$OUT/Q8_0/tiny-Q8_0-00002-of-00002.gguf"
ok "and prints the first" equal "$OUT/Q8_0/tiny-Q8_0-00001-of-00002.gguf" "$(cat "$WORK/pull.out")"
ok "a type that is not there" fails 1 "UD-Q4_K_M" loom/tiny-GGUF:Q5_K_M --out "$OUT"
ok "a file that is not there" fails 1 "tokenizer_config.json" loom/loom-demo:tokeniser_config.json --out "$OUT"
ok "a glob" pull 'loom/loom-demo:*.txt' --out "$OUT"
ok "brings what it means" test -f "$OUT/additional file.txt"
ok "no such model" fails 1 "loom/loom-demo" loom/loom-dmo --out "$OUT"
ok "no such revision" fails 1 "'v9'" loom/loom-demo --revision v9 --out "$OUT"
ok "--revision" pull loom/odd --revision main --out "$WORK/odd"

say "who asks"
fresh
behave '{"gated": true}'
ok "a gated model" fails 1 "HF_TOKEN" loom/loom-demo --out "$OUT"
HF_TOKEN=bad ok "a token without access" fails 1 "HTTP 403" loom/loom-demo --out "$OUT"
HF_TOKEN=good-token ok "a token" pull loom/loom-demo --out "$OUT"
ok "every byte" same_demo "$OUT"
ok "the CDN sees no token" equal "0" "$(logged 'sum(a["port"] == "cdn" and a["authorization"] is not None for a in d)')"
ok "the CDN was asked" test "$(logged 'sum(a["port"] == "cdn" for a in d)')" -gt 0
ok "a token with a line break" env HF_TOKEN=$'a\nb' bash -c "! '$LOOM' pull loom/odd --out '$OUT' 2>'$WORK/null'"
HF_ENDPOINT=http://127.0.0.1:1 ok "nobody there" fails 1 "127.0.0.1:1: " loom/loom-demo --out "$OUT"
HF_ENDPOINT=http://no-such-host.invalid ok "no such host" fails 1 "no-such-host.invalid" loom/loom-demo --out "$OUT"
HF_ENDPOINT=ftp://x ok "no URL" fails 2 "endpoint" loom/loom-demo --out "$OUT"

say "ModelScope"
fresh
behave
MODELSCOPE_ENDPOINT=$HF_ENDPOINT ok "--from modelscope" pull loom/loom-demo --from modelscope --out "$OUT"
ok "every byte" same_demo "$OUT"
ok "by its own layout" equal 0 "$(logged 'sum("/resolve/" in a["path"] for a in d)')"
fresh
ok "MODELSCOPE_ENDPOINT alone" env -u HF_ENDPOINT MODELSCOPE_ENDPOINT="$HF_ENDPOINT" MODELSCOPE_API_TOKEN=good-token \
    "$LOOM" pull loom/tiny-GGUF:Q6_K --out "$OUT" --quiet >"$WORK/pull.out"
ok "brings the file" cmp "$REPOS/loom/tiny-GGUF/tiny-Q6_K.gguf" "$OUT/tiny-Q6_K.gguf"
ok "the CDN sees no token" equal 0 "$(logged 'sum(a["port"] == "cdn" and bool(a["authorization"] or a["cookie"]) for a in d)')"
MODELSCOPE_ENDPOINT=$HF_ENDPOINT ok "no such model there" fails 1 "no such model" loom/none --from modelscope --out "$OUT"

say "flags"
ok "no model" fails 2 "REPO" --out "$OUT"
ok "a path is no model" fails 2 "'../x'" ../x --out "$OUT"
ok "--connections 0" fails 2 "--connections" loom/odd --connections 0
printf x >"$WORK/plain"
ok "--out is a file" fails 2 "plain: stands there and is no folder" loom/odd --out "$WORK/plain"
ok "--from" fails 2 "--from" loom/odd --from elsewhere
ok "one connection" pull loom/loom-demo --out "$WORK/one" --connections 1
ok "every byte" same_demo "$WORK/one"
behave '{"wrong_size": "config.json", "by": 500000000000000}'
ok "more than the disk has" fails 1 "B free, and" loom/loom-demo --out "$WORK/full"
ok "is not begun" test ! -e "$WORK/full/tokenizer.json"
# Room for one large file, which looks right by its size, and not for a second one beside it.
if unshare -rm true 2>"$WORK/null"; then
    mkdir "$WORK/tight"
    behave
    pull_tight() { # on a small disk, which nobody but this process sees
        unshare -rm sh -c 'mount -t tmpfs -o size=220k none "$2" && head -c 150000 /dev/zero >"$2/tiny-Q6_K.gguf" &&
            exec timeout 60 "$1" pull loom/tiny-GGUF:Q6_K --out "$2"' sh "$LOOM" "$WORK/tight" \
            >"$WORK/pull.out" 2>"$WORK/pull.err"
    }
    ok "a file that must be replaced" equal 1 "$(code_of pull_tight)"
    ok "needs room, too" says "B free, and"
fi
finish
