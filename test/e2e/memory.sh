#!/bin/bash
# What a process says it will take is what it takes: resident memory at its peak, of one process and of a node, with
# weights from a GGUF file, from a folder whose tensors are converted, and fetched over the network.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

SPARE=30 # MB by which allocators, page tables and the like may differ, beside 5 %
KV="--context 512 --sequences 4"

hwm() { awk '/^VmHWM/ { print int($2 * 1024 / 1e6) }' "/proc/$1/status"; }                # MB
figures() { sed -n 's/.* info memory: //p' "$WORK/$1.err" | tail -n 1 | grep -o '[0-9.]* GB' | tr -d ' GB' | tr '\n' ' '; }
is() { awk "BEGIN { exit !($1) }" || { echo "  not so: $1"; return 1; }; }

# check NAME: of a process that filled its KV cache.
check() {
    local weights loaded most peak
    peak=$(hwm "${PID[$1]}")
    read -r weights loaded most <<<"$(figures "$1")"
    must "$1 says what it will take" test -n "$most"
    echo "$1: weights $weights GB, loaded $loaded, at most $most; its peak $peak MB"
    ok "$1 takes no more than it said" is "$peak <= $most * 1050 + $SPARE"
    ok "$1 takes about what it said" is "$peak >= $most * 950 - $SPARE"
    ok "$1 needs little beside weights and KV" is "$peak <= $weights * 1100 + ($most - $loaded) * 1100 + 100 + $SPARE"
}

# Four answers up to the end of the context, at the same time.
fill() {
    local i jobs=()
    for i in 1 2 3 4; do
        curl -s -o /dev/null -m 120 "$URL/v1/completions" -d '{"model": "m", "prompt": "'"$i"'", "max_tokens": 500,
            "temperature": 0}' &
        jobs+=($!)
    done
    wait "${jobs[@]}"
}

say "a model of 140 MB"
mkdir "$WORK/m"
cp "$MODEL"/tokenizer*.json "$WORK/m/"
python3 - "$MODEL/config.json" "$WORK/m/config.json" <<'END'
import json, sys
c = json.load(open(sys.argv[1]))
c.update(hidden_size=1024, intermediate_size=4096, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
         head_dim=128)
c.pop("layer_types", None)
json.dump(c, open(sys.argv[2], "w"))
END
must "it is made" "$LOOM" synth "$WORK/m" "$WORK/m.gguf" --type q8_0 --threads 2 >/dev/null

say "one process"
# shellcheck disable=SC2086
serve file "$WORK/m.gguf" $KV
ready file
loaded=$(hwm "${PID[file]}")
fill
check file
read -r _ said _ <<<"$(figures file)"
ok "and before it was used, too" is "$loaded <= $said * 1050 + $SPARE && $loaded >= $said * 950 - $SPARE"
end file

say "one process, converted"
# shellcheck disable=SC2086
serve f16 "$WORK/m.gguf" $KV --kv f16
ready f16
fill
check f16
end f16

say "a node that fetches all of it"
# shellcheck disable=SC2086
head_of head "$WORK/m.gguf" $KV --min-nodes 1
node one "$(token)"
ready head
fill
said=$(sed -n 's/.*layers \[0, 8) will take \([0-9]*\) MB.*/\1/p' "$WORK/one.err" | tail -n 1)
must "it says what the layers take" test -n "$said"
peak=$(hwm "${PID[one]}")
echo "layers of $said MB; the node's peak $peak MB, the head's $(hwm "${PID[head]}") MB"
ok "it takes what they take" is "$peak <= $said * 1.1 + 100"
ok "the head takes no weights" is "$(hwm "${PID[head]}") <= 100"
finish
