#!/bin/bash
# `loom run` and its neighbours that need no server: what they print, what they refuse, and how they say so.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

ASKED='Please work out 25/5'
RENDERED=$'<|im_start|>user\nPlease work out 25/5<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n'
RENDERED_IDS='[3750,340,198,1189,1188,1186,220,17,20,14,20,3751,198,3750,339,198,3756,1723,3757,1723]'
STORY='Once upon a time there was a dog'

run() { "$LOOM" run "$MODEL" "$@" 2>"$WORK/err"; }
json() { run --json "$@" >"$WORK/json"; }
field() { value "$1" <"$WORK/json"; }
ids() { json "$@" && field 'd["token_ids"]'; }
one_line() { [ "$(wc -l <"$1")" -eq 1 ]; }

# refused CODE NAME COMMAND...: exit code, nothing on stdout, one line on stderr that says NAME.
refused() {
    local code=$1 name=$2 rc
    shift 2
    timeout 60 "$@" >"$WORK/out" 2>"$WORK/err"
    rc=$?
    if [ "$rc" -ne "$code" ] || [ -s "$WORK/out" ] || ! one_line "$WORK/err" || ! grep -qF -- "$name" "$WORK/err"; then
        echo "  exit code $rc (want $code, and one line with '$name'): $(head -c 600 "$WORK/err" "$WORK/out")"
        return 1
    fi
}
bad_flag() { # NAME ARGS...
    local name=$1
    shift
    ok "refuses $*" refused 2 "$name" "$LOOM" "$@"
}

say "prompts"
must "-p" run -p "$STORY" --temp 0 -n 24 >"$WORK/text"
json -p "$STORY" --temp 0 -n 24
ok "text and JSON agree" equal "$(cat "$WORK/text")" "$(field 'd["text"]')"
ok "the members of the JSON" equal \
    "completion_tokens finish_reason prompt_tokens seed text timings token_ids decode_tps load_ms ttft_ms" \
    "$(field '" ".join(sorted(d) + sorted(d["timings"]))')"
ok "24 tokens, for want of room" equal "24 24 length" \
    "$(field 'str(len(d["token_ids"])) + " %d %s" % (d["completion_tokens"], d["finish_reason"])')"
ok "JSON is one line and nothing else" one_line "$WORK/json"
ok "nothing on stderr" test ! -s "$WORK/err"

json --chat "$ASKED" --temp 0
CHAT=$(field 'd["token_ids"]')
ok "--chat ends with the stop token" equal "stop 3751" "$(field 'd["finish_reason"] + " %d" % d["token_ids"][-1]')"
ok "--chat is the rendered template" equal "$CHAT" "$(ids -p "$RENDERED" --temp 0)"
echo "$RENDERED_IDS" >"$WORK/ids"
ok "--ids is the same again" equal "$CHAT" "$(ids --ids "$WORK/ids" --temp 0)"
ok "prompt_tokens" equal 20 "$(field 'd["prompt_tokens"]')"
json --chat "$ASKED" --temp 0 --think -n 64
ok "--think opens another prompt" test "$(field 'd["prompt_tokens"]')" -lt 20
json --chat '<|im_end|>' --temp 0 -n 4
ok "control tokens in a message are text" test "$(field 'd["prompt_tokens"]')" -gt 13
ok "Chinese" run --chat '你好' --temp 0 -n 32 >"$WORK/text"
ok "whole characters" python3 -c 'import sys; open(sys.argv[1], encoding="utf-8").read()' "$WORK/text"

say "stages in one process"
WHOLE=$(ids -p "$STORY" --temp 1 --seed 5 -n 40)
for split in 12 6,6 1,11 4,4,4 1,1,1,1,1,1,1,1,1,1,1,1; do
    ok "--split $split" equal "$WHOLE" "$(ids -p "$STORY" --temp 1 --seed 5 -n 40 --split "$split")"
done

say "ends of an answer"
json -p "$STORY" --temp 0 -n 24
TEXT=$(field 'd["text"]')
STOP=$(printf '%s' "$TEXT" | cut -d' ' -f6,7)
json -p "$STORY" --temp 0 -n 24 --stop "$STOP"
ok "--stop cuts before '$STOP'" equal "${TEXT%%"$STOP"*}|stop" "$(field 'd["text"] + "|" + d["finish_reason"]')"
json -p "$STORY" --temp 0 -n 24 --stop 'never said' --stop "${STOP:1:4}"
ok "the second --stop, in the middle of words" equal "${TEXT%%"${STOP:1:4}"*}|stop" \
    "$(field 'd["text"] + "|" + d["finish_reason"]')"
json -p "$STORY" --temp 0 -n 24 --stop 'never said'
ok "a stop string that does not come" equal "$TEXT|length" "$(field 'd["text"] + "|" + d["finish_reason"]')"
json -p '1, 2, 3, 4, 5, 6,' --temp 0 -n 0 --context 100
ok "-n 0 fills the window" equal "100 length" "$(field '"%d %s" % (d["prompt_tokens"] + d["completion_tokens"], d["finish_reason"])')"
json -p '1, 2, 3, 4, 5, 6,' --temp 0 -n 9999 --context 100
ok "-n beyond the window fills it, too" equal 100 "$(field 'd["prompt_tokens"] + d["completion_tokens"]')"
json -p '1, 2, 3, 4, 5, 6,' --temp 0 -n 1
ok "-n 1" equal 1 "$(field 'd["completion_tokens"]')"

say "drawing"
A=$(ids -p "$STORY" --temp 1.2 --top-k 0 --top-p 1 --seed 7 -n 40)
ok "a seed repeats" equal "$A" "$(ids -p "$STORY" --temp 1.2 --top-k 0 --top-p 1 --seed 7 -n 40)"
for seed in 8 9 10 11; do ids -p "$STORY" --temp 1.2 --top-k 0 --top-p 1 --seed $seed -n 40; done | sort -u >"$WORK/seeds"
ok "other seeds draw otherwise" test "$(wc -l <"$WORK/seeds")" -gt 2
B=$(ids -p "$STORY" --temp 1.2 -n 40)
SEED=$(field 'd["seed"]')
ok "the seed that was chosen is told, and repeats" equal "$B" "$(ids -p "$STORY" --temp 1.2 -n 40 --seed "$SEED")"
GREEDY=$(ids -p "$STORY" --temp 0 -n 40)
ok "--top-k 1 is greedy" equal "$GREEDY" "$(ids -p "$STORY" --temp 1 --top-k 1 --seed 3 -n 40)"
ok "a tiny --top-p is greedy" equal "$GREEDY" "$(ids -p "$STORY" --temp 1 --top-p 1e-6 --top-k 0 --seed 3 -n 40)"
ok "--min-p 1 is greedy" equal "$GREEDY" "$(ids -p "$STORY" --temp 1 --min-p 1 --top-p 1 --top-k 0 --seed 3 -n 40)"

json -p "$STORY" --temp 1.2 -n 4 --seed -1
ok "--seed -1 draws one" test "$(field 'd["seed"]')" -ge 0

say "weights and KV cache"
for weights in as-is l8 q8_0 q4_0; do
    for kv in int8 f16; do
        M=$(ids -p "$STORY" --temp 0 -n 20 --weights $weights --kv $kv)
        ok "$weights, $kv: 20 tokens" test "$(field 'd["completion_tokens"]')" = 20
        ok "$weights, $kv, in 2 stages" equal "$M" "$(ids -p "$STORY" --temp 0 -n 20 --weights $weights --kv $kv --split 5,7)"
    done
done
ok "l8 and int8 are what is taken by default" equal "$(ids -p "$STORY" --temp 0 -n 20)" \
    "$(ids -p "$STORY" --temp 0 -n 20 --weights l8 --kv int8)"
ok "one thread or three" equal "$(ids -p "$STORY" -n 20 --seed 1 --threads 1)" "$(ids -p "$STORY" -n 20 --seed 1 --threads 3)"

say "weights that are quantised already"
must "quantize takes a type in capitals" "$LOOM" quantize "$MODEL" "$WORK/packed.gguf" --type Q8_0 >"$WORK/out"
"$LOOM" run "$WORK/packed.gguf" -p "$STORY" --temp 0 -n 1 --weights q4_0 >"$WORK/out" 2>"$WORK/err"
ok "--weights is told to change nothing" grep -q 'changes nothing' "$WORK/err"
"$LOOM" run "$WORK/packed.gguf" -p "$STORY" --temp 0 -n 1 --weights as-is >"$WORK/out" 2>"$WORK/err"
ok "where it was meant to" test ! -s "$WORK/err"

say "flags that make no sense"
bad_flag --nonsense run "$MODEL" -p A --nonsense
bad_flag --split run "$MODEL" -p A --split 4,4
bad_flag --split run "$MODEL" -p A --split 12,0
bad_flag --split run "$MODEL" -p A --split 4,x,4
bad_flag --split run "$MODEL" -p A --split ''
bad_flag -n run "$MODEL" -p A -n -1
bad_flag -n run "$MODEL" -p A -n 1.5
bad_flag -n run "$MODEL" -p A -n
bad_flag --temp run "$MODEL" -p A --temp hot
bad_flag --temp run "$MODEL" -p A --temp nan
bad_flag --top-p run "$MODEL" -p A --top-p 1.5
bad_flag --top-k run "$MODEL" -p A --top-k -3
bad_flag --min-p run "$MODEL" -p A --min-p 2
bad_flag --seed run "$MODEL" -p A --seed x
bad_flag --weights run "$MODEL" -p A --weights q3
bad_flag --kv run "$MODEL" -p A --kv f32
bad_flag --isa run "$MODEL" -p A --isa neon
bad_flag --device run "$MODEL" -p A --device cuda:0
bad_flag --context run "$MODEL" -p A --context 0
bad_flag --context serve "$MODEL" --context 1
bad_flag --context run "$MODEL" -p A --context 8193
bad_flag --chunk run "$MODEL" -p A --chunk 0
bad_flag --chunk run "$MODEL" -p A --chunk 4096
bad_flag --memory run "$MODEL" -p A --memory lots
bad_flag --memory run "$MODEL" -p A --memory 0
bad_flag --memory run "$MODEL" -p A --memory 4e9G
bad_flag --think run "$MODEL" -p A --think
bad_flag --stop run "$MODEL" --ids "$WORK/ids" --stop A
bad_flag --stop run "$MODEL" -p A --stop ''
bad_flag --seed run "$MODEL" -p A --seed -2
bad_flag GGUF run -p A
bad_flag GGUF serve
bad_flag --min-nodes serve "$MODEL" --listen 127.0.0.1:0 --min-nodes 3
bad_flag --min-nodes serve "$MODEL" --listen 127.0.0.1:0 --local-nodes 2 --min-nodes 3
bad_flag "qwen3-1.7b" synth "$WORK/shape.gguf"
bad_flag "not stdout" synth qwen3-0.6b -
bad_flag --json run "$MODEL" -p A --json=yes
bad_flag -p run "$MODEL"
bad_flag -p run "$MODEL" -p A --chat B
bad_flag -p run "$MODEL" -p ''
bad_flag MODEL run -p A
bad_flag more run "$MODEL" -p A more
bad_flag frobnicate frobnicate
BROKEN=$'\xff'
bad_flag -p run "$MODEL" -p "$BROKEN"
bad_flag --chat run "$MODEL" --chat "$BROKEN"
bad_flag --system chat --system "$BROKEN"
bad_flag --model chat --model "$BROKEN"
bad_flag -p chat -p "$BROKEN"
bad_flag --join node
for address in 'a b:99999' a:0 ::1:77 $'a\nb:1' a:65536 ':7701' 'a: 1' nothing; do
    bad_flag --address token create --address "$address"
    bad_flag "nor HOST:PORT" node --join "$address"
done
bad_flag "--join: the token" node --join loom1-abc
bad_flag --address token create
bad_flag --node-timeout serve "$MODEL" --node-timeout 399
bad_flag --cluster serve "$MODEL" --listen 127.0.0.1:0 --cluster 7701
bad_flag 99999 serve "$MODEL" --listen 127.0.0.1:99999
bad_flag --context bench "$MODEL" --context 100
bad_flag "-p and -g" bench "$MODEL" -p 8192 -g 1
bad_flag token token
bad_flag MODEL serve
bad_flag MODEL bench
bad_flag -b bench "$MODEL" -b 0
printf '# settings\nthreads = 1\nmany = 2\n' >"$WORK/settings"
bad_flag "settings:3" serve "$MODEL" --config "$WORK/settings"
printf 'threads = few\n' >"$WORK/settings"
bad_flag "settings:1" serve "$MODEL" --config "$WORK/settings"
ok "a prompt longer than the window" refused 2 'window' "$LOOM" run "$MODEL" -p "$STORY" --context 4
"$LOOM" >"$WORK/out" 2>"$WORK/err"
ok "no command: 2" equal 2 $?

say "models that are not there, or broken"
broken() { # NAME WHAT COMMAND...: a copy of the model, changed by the command inside it
    local name=$1 what=$2
    shift 2
    rm -rf "$WORK/broken"
    cp -r "$MODEL" "$WORK/broken"
    chmod -R u+w "$WORK/broken"
    (cd "$WORK/broken" && "$@")
    ok "$what" refused 1 "$name" "$LOOM" run "$WORK/broken" --chat A -n 1
}
ok "no such folder" refused 1 nowhere "$LOOM" run nowhere -p A
ok "a hub's name" refused 1 "loom pull" "$LOOM" run Qwen/Qwen3-4B -p A
ok "a file" refused 1 README.md "$LOOM" run models/README.md -p A
broken config.json "no config.json" rm config.json
broken config.json "config.json cut off" truncate -s 100 config.json
broken Other "another architecture" sed -i 's/Qwen3ForCausalLM/OtherForCausalLM/; s/"qwen3"/"other"/' config.json
broken 257 "hidden_size does not fit" sed -i 's/"hidden_size": 256/"hidden_size": 257/' config.json
broken num_hidden_layers "no layers" sed -i 's/"num_hidden_layers": 12/"num_hidden_layers": 0/' config.json
broken model-00002 "a shard is missing" rm model-00002-of-00002.safetensors
broken model-00002 "a shard is cut off" truncate -s 9000000 model-00002-of-00002.safetensors
broken model-00001 "a shard is not one" sh -c 'echo hello >model-00001-of-00002.safetensors'
broken index.json "the index is not JSON" sh -c 'echo "{" >model.safetensors.index.json'
broken "num_hidden_layers is 11, but there is a layer 11" "more layers than config.json says" sh -c 'python3 - <<END
import json
d = json.load(open("config.json"))
d["num_hidden_layers"] = 11
d.pop("layer_types", None)
json.dump(d, open("config.json", "w"))
END'
broken "generation_config.json" "a link in a circle" sh -c 'rm generation_config.json; ln -s generation_config.json .'
broken "model.safetensors" "weights behind a link in a circle" ln -s model.safetensors .
broken "vocab_size is 8192" "a token without a row" \
    sed -i 's/"id": 3750,/"id": 9000,/' tokenizer.json
broken tokenizer.json "no tokenizer.json" rm tokenizer.json
broken tokenizer.json "tokenizer.json cut off" truncate -s 1000 tokenizer.json
broken template "no chat template" sh -c 'rm chat_template.jinja; python3 - <<END
import json
d = json.load(open("tokenizer_config.json"))
d.pop("chat_template", None)
json.dump(d, open("tokenizer_config.json", "w"))
END'
broken "chat template" "a template with a mistake" sh -c 'echo "{% for %}" >chat_template.jinja'
broken "rendered nothing" "a template that renders nothing" sh -c 'echo -n "{{ \"\" }}" >chat_template.jinja'
broken "a template's own words" "a template that refuses" sh -c 'echo "{{ raise_exception(\"a template'"'"'s own words\") }}" >chat_template.jinja'
broken "NUL" "a template with a NUL" sh -c 'printf "a\\0b" >chat_template.jinja'
echo '[1, 2' >"$WORK/bad_ids"
ok "ids that are not JSON" refused 1 bad_ids "$LOOM" run "$MODEL" --ids "$WORK/bad_ids"
echo '[1, 8192]' >"$WORK/bad_ids"
ok "an id over the vocabulary" refused 1 8191 "$LOOM" run "$MODEL" --ids "$WORK/bad_ids"
ok "no room for the model" refused 1 "does not fit" "$LOOM" run "$MODEL" -p A --memory 1M

say "inspect says what run does"
told() { # NAME WHAT: of the copy that was broken last, or of a file
    local name=$1 what=$2 path=${3:-$WORK/broken} rc
    "$LOOM" inspect "$path" >"$WORK/out" 2>"$WORK/err"
    rc=$?
    ok "inspect, $what: exit code" equal 1 "$rc"
    ok "inspect, $what: the reason on stderr" grep -qF -- "$name" "$WORK/err"
    ok "inspect, $what: the reason comes first" grep -qF -- "$name" <(head -n 1 "$WORK/out")
    ok "inspect, $what: no list of tensors" test "$(wc -l <"$WORK/out")" -lt 60
    "$LOOM" inspect "$path" --json >"$WORK/out" 2>"$WORK/err"
    ok "inspect --json, $what" equal "False" "$(value 'd["runs"]' <"$WORK/out")"
}
setting() { # KEY VALUE: of config.json, as JSON; no value: it goes
    python3 - "$@" <<'END'
import json, sys
d = json.load(open("config.json"))
d.pop(sys.argv[1], None)
d.pop("layer_types", None)
if len(sys.argv) > 2: d[sys.argv[1]] = json.loads(sys.argv[2])
json.dump(d, open("config.json", "w"))
END
}
broken tokenizer.json "no tokenizer.json" rm tokenizer.json
told tokenizer.json "no tokenizer.json"
broken model.layers.12 "too few layers" setting num_hidden_layers 13
told model.layers.12 "too few layers"
broken bias "biases that are not there" setting attention_bias true
told bias "biases that are not there"
broken '"tie_word_embeddings": true' "no word on the output head" setting tie_word_embeddings
told '"tie_word_embeddings": true' "no word on the output head"
broken Other "another architecture" sed -i 's/Qwen3ForCausalLM/OtherForCausalLM/; s/"qwen3"/"other"/' config.json
told Other "another architecture"
fits() { "$LOOM" inspect "$MODEL" --json "$@" 2>"$WORK/err" | value 'd["fits"]'; }
for memory in 40M 44M 46M 47M 48M 52M; do
    run -p A -n 1 --memory $memory >"$WORK/out" && RUNS=True || RUNS=False
    ok "inspect and run agree on --memory $memory" equal "$RUNS" "$(fits --memory $memory)"
done
ok "more sequences than fit are fewer" equal True "$(fits --sequences 256 --memory 1G)"

say "a folder with one GGUF file, and what such a file keeps"
mkdir "$WORK/gguf"
ok "quantize" "$LOOM" quantize "$MODEL" "$WORK/gguf/one.gguf" --type q8_0 >"$WORK/out" 2>"$WORK/err"
ok "without a word" test ! -s "$WORK/err"
run -p "$STORY" --temp 0 -n 8 --weights q8_0 >"$WORK/text"
ok "the folder is the file" equal "$(cat "$WORK/text")" "$("$LOOM" run "$WORK/gguf" -p "$STORY" --temp 0 -n 8)"
ok "inspect of the folder" equal one "$("$LOOM" inspect "$WORK/gguf" --json | value 'd["model"]')"
cp "$WORK/gguf/one.gguf" "$WORK/gguf/two.gguf"
ok "of two it is not chosen" refused 1 "$WORK/gguf/one.gguf" "$LOOM" run "$WORK/gguf" -p A
ok "quantize to a folder that is not there" refused 1 "loom quantize: $WORK/none" \
    "$LOOM" quantize "$MODEL" "$WORK/none/x.gguf" --type q8_0
rm -rf "$WORK/broken"
cp -r "$MODEL" "$WORK/broken"
chmod -R u+w "$WORK/broken"
echo '{"eos_token_id": [3751, 3749, 5, 517]}' >"$WORK/broken/generation_config.json"
ok "quantize, four end tokens" "$LOOM" quantize "$WORK/broken" "$WORK/ends.gguf" --type q8_0 >"$WORK/out" 2>"$WORK/err"
ok "other programs stop later" grep -q 'warning: .*end tokens' "$WORK/err"
ENDS=$("$LOOM" run "$WORK/broken" -p "$STORY" --temp 1 --seed 5 -n 200 --weights q8_0 --json | value 'd["token_ids"]')
ok "they end the same answer" equal "$ENDS" \
    "$("$LOOM" run "$WORK/ends.gguf" -p "$STORY" --temp 1 --seed 5 -n 200 --json | value 'd["token_ids"]')"
ok "at one of them" grep -qE '(3751|3749|, 5|517)\]$' <<<"$ENDS"

say "an output that cannot be written"
unwritten() { # COMMAND...: exit code 1 and one line about stdout
    local rc
    timeout 60 "$LOOM" "$@" >/dev/full 2>"$WORK/err"
    rc=$?
    [ "$rc" -eq 1 ] && one_line "$WORK/err" && grep -q stdout "$WORK/err"
}
closed() {
    local rc
    timeout 60 "$LOOM" "$@" >&- 2>"$WORK/err"
    rc=$?
    [ "$rc" -eq 1 ] && one_line "$WORK/err" && grep -q stdout "$WORK/err"
}
for how in unwritten closed; do
    ok "$how: --version" $how --version
    ok "$how: --help" $how --help
    ok "$how: run" $how run "$MODEL" -p "$STORY" -n 4
    ok "$how: run --json" $how run "$MODEL" -p "$STORY" -n 4 --json
    ok "$how: inspect" $how inspect "$MODEL"
done
timeout 60 "$LOOM" run "$MODEL" -p "$STORY" -n 0 --temp 1 --seed 1 2>"$WORK/err" | head -c 1 >"$WORK/out"
ok "run ends when nobody reads" equal 1 "${PIPESTATUS[0]}"
"$LOOM" logits "$MODEL" --ids "$WORK/ids" --out "$WORK/logits" && cp "$WORK/logits" "$WORK/logits.old"
ok "logits" test -s "$WORK/logits"
ok "logits to a device" refused 1 --out "$LOOM" logits "$MODEL" --ids "$WORK/ids" --out /dev/full
(ulimit -f 8; trap '' XFSZ; refused 1 --out "$LOOM" logits "$MODEL" --ids "$WORK/ids" --out "$WORK/logits")
ok "logits that did not fit" equal 0 $?
ok "the old file stays, and nothing beside it" equal logits,logits.old \
    "$(cmp "$WORK/logits" "$WORK/logits.old" && cd "$WORK" && printf '%s\n' logits* | paste -sd,)"

say "a port that is taken"
python3 -c 'import socket, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(600)' >"$WORK/port" &
TAKER=$!
within 10 test -s "$WORK/port"
ok "is told before the model is looked at" refused 1 "$(cat "$WORK/port")" \
    "$LOOM" serve nowhere --listen "127.0.0.1:$(cat "$WORK/port")"
kill "$TAKER"

say "the end of a terminal"
serve hung "$MODEL"
end hung HUP
ok "SIGHUP ends serve like SIGTERM" equal 0 "$RC"

say "help and the rest"
for command in run serve node chat demo status token inspect logits eval bench; do
    ok "$command --help" "$LOOM" $command --help >"$WORK/help"
    ok "$command --help in English" grep -q '^usage: loom '"$command" "$WORK/help"
    LC_ALL=zh_CN.UTF-8 "$LOOM" $command --help >"$WORK/help"
    ok "$command --help in Chinese" grep -q "^用法: loom $command" "$WORK/help"
done
ok "synth --help lists the shapes" sh -c "'$LOOM' synth --help | grep -q 'SHAPE.*qwen3-4b, qwen3-8b'"
ok "--version" test "$("$LOOM" --version | grep -c '^loom [0-9]')" = 1
ok "inspect" "$LOOM" inspect "$MODEL" >"$WORK/out"
ok "inspect says something" test -s "$WORK/out"
ok "the numeric contract" "$LOOM" bench --self-test >"$WORK/out"
cat >"$WORK/bench.py" <<'END'
# Rows of `loom bench --json`: their batches, if each phase names all there is, its operations take all of its time, and
# the shares are what they are said to be of.
import json, sys
for row in map(json.loads, open(sys.argv[1])):
    need = {"prefill_tps", "decode_tps", "ttft_ms", "weights", "threads", "gb_s", "tops", "read_gb_s", "peak_tops", "head_us"}
    good = need <= set(row)
    for phase in row["phases"].values():
        ops = phase["ops"].values()
        good &= phase["tps"] > 0 and phase["steps"] > 0 and len(ops) == 14
        good &= abs(sum(op["ms"] for op in ops) - phase["ms"]) < 0.02 + 0.01 * phase["ms"]
        good &= sum(op["bytes"] for op in ops) in range(phase["bytes"] - 14, phase["bytes"] + 15)
        good &= sum(op["int8_ops"] for op in ops) in range(phase["int8_ops"] - 14, phase["int8_ops"] + 15)
        good &= abs(phase["gb_s"] / phase["read_gb_s"] - phase["read_share"]) < 0.01
        good &= all(phase["ops"][name]["bytes"] > 0 for name in ("qkv", "o", "ffn", "head", "attention"))
    print(row["batch"], good)
END
bench_rows() { python3 "$WORK/bench.py" "$WORK/out" | tr '\n' ' '; }
"$LOOM" bench "$MODEL" -p 16 -g 4 -b 1,3 --json >"$WORK/out" 2>"$WORK/err"
ok "bench: two rows of JSON" equal "1 True 3 True " "$(bench_rows)"
"$LOOM" quantize "$MODEL" "$WORK/bench.gguf" --type q8_0 >"$WORK/out" 2>&1
"$LOOM" bench "$WORK/bench.gguf" -p 8 -g 2 --split 6,6 --json >"$WORK/out" 2>"$WORK/err"
ok "bench of a GGUF file, in two stages" equal "1 True " "$(bench_rows)"
ok "bench says how the weights are kept" equal q8_0 "$(value 'd["weights"]' <"$WORK/out")"
"$LOOM" bench "$MODEL" -p 8 -g 2 -b 2 >"$WORK/out" 2>"$WORK/err"
ok "bench for people: two phases" equal 2 "$(grep -c '^  all ' "$WORK/out")"
ok "bench for people: the operations" equal 2 "$(grep -c '^  attention ' "$WORK/out")"
"$LOOM" bench "$MODEL" -p 3 -g 1 --json >"$WORK/out" 2>"$WORK/err"
ok "bench with a prompt of three tokens" one_line "$WORK/out"
echo '[{"messages": [{"role": "king"}], "expected": "x"}]' >"$WORK/asked.json"
cp -r "$MODEL" "$WORK/silent"
echo -n '{{ "" }}' >"$WORK/silent/chat_template.jinja"
ok "eval with a template that renders nothing" refused 1 "rendered nothing" "$LOOM" eval "$WORK/silent" "$WORK/asked.json"
finish
