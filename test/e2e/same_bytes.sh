#!/bin/bash
# The same request gives the same tokens: in one process or several, cut anywhere, alone or with 39 others, in prompt
# pieces of any size, on every instruction set. 40 mixed requests, greedy and drawn with seeds, compared by hash.
# LOOM_OTHERS="PATH PATH": other builds of the program that must agree, too.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

load make --n 40 --tokens 64 >"$WORK/requests"
load make --n 10 --tokens 24 >"$WORK/few"

ISAS=()
for isa in ref avx2 avx512; do
    if "$LOOM" run "$MODEL" -p A -n 1 --isa "$isa" >/dev/null 2>"$WORK/isa"; then
        ISAS+=("$isa")
    else
        echo "left out: $(tail -n 1 "$WORK/isa")"
    fi
done

# alike TITLE NAME WANT: the answers in $WORK/NAME are those in $WORK/WANT.
alike() { ok "$1" load compare "$WORK/$3" "$WORK/$2"; }
# in_process NAME REQUESTS MODEL FLAGS...
in_process() {
    local name=$1 requests=$2 model=$3
    shift 3
    ok "loom run $* ends well" load run "$LOOM" "$model" "$WORK/$requests" --out "$WORK/$name" -- "$@"
}

say "one process each, in one piece"
must "loom run ends well" load run "$LOOM" "$MODEL" "$WORK/requests" --out "$WORK/want"
must "loom run ends well" load run "$LOOM" "$MODEL" "$WORK/few" --out "$WORK/few_want"
ok "not all of the answers are alike" test "$(python3 -c 'import json, sys
print(len({json.loads(l)["hash"] for l in open(sys.argv[1])}))' "$WORK/want")" -gt 25

say "cut into 2, 3, 4, 6 and 12 stages"
for split in 6,6 1,10,1 3,3,3,3 2,2,2,2,2,2 1,1,1,1,1,1,1,1,1,1,1,1; do
    in_process split requests "$MODEL" --split "$split"
    alike "--split $split" split want
done

say "prompts in pieces of 16, 64 and 512"
for chunk in 16 64 512; do
    in_process chunk requests "$MODEL" --chunk "$chunk"
    alike "--chunk $chunk" chunk want
done

say "instruction sets: ${ISAS[*]}"
for isa in "${ISAS[@]}"; do
    in_process isa requests "$MODEL" --isa "$isa"
    alike "--isa $isa" isa want
done

say "every kind of weights and KV cache, plain C in 3 stages against the best of this machine"
for mode in "as-is int8" "as-is f16" "l8 f16" "q8_0 int8" "q8_0 f16" "q4_0 int8" "q4_0 f16"; do
    # shellcheck disable=SC2086
    set -- $mode
    in_process mode_want few "$MODEL" --weights "$1" --kv "$2"
    in_process mode few "$MODEL" --weights "$1" --kv "$2" --split 4,5,3 --chunk 16 --isa ref
    alike "--weights $1 --kv $2" mode mode_want
done

# served TITLE REQUESTS WANT AT-ONCE: by the server at $URL.
served() {
    ok "$1: all are answered" load send "$URL" "$WORK/$2" --at-once "$4" --out "$WORK/served"
    alike "$1" served "$3"
}

say "loom serve, in its own process"
serve alone "$MODEL"
ready
served "one after the other" requests want 1
served "40 at once" requests want 40
end alone
for chunk in 16 64; do
    serve "chunk$chunk" "$MODEL" --chunk "$chunk" --threads 1
    ready
    served "40 at once, --chunk $chunk" requests want 40
    end "chunk$chunk"
done

for n in 2 3 4; do
    say "loom serve --local-nodes $n"
    serve "local$n" "$MODEL" --local-nodes "$n" --threads 1
    ready
    ok "the route has $n stages" route_is "$n"
    served "$n nodes, 40 at once" requests want 40
    served "$n nodes, one after the other" few few_want 1
    end "local$n"
done

say "nodes with different instruction sets"
head_of mixed "$MODEL" --min-nodes "${#ISAS[@]}" --chunk 64
for isa in "${ISAS[@]}"; do node "node-$isa" "$(token)" --isa "$isa"; done
ready
ok "each has a stage" route_is "${#ISAS[@]}"
served "${ISAS[*]}, 40 at once" requests want 40
for isa in "${ISAS[@]}"; do end "node-$isa"; done
end mixed

for other in ${LOOM_OTHERS:-}; do
    say "$other"
    ok "$other ends well" load run "$other" "$MODEL" "$WORK/requests" --out "$WORK/other" -- --split 5,7
    alike "$other run" other want
    start other "$other" serve "$MODEL" --listen 127.0.0.1:0 --local-nodes 2
    must "$other says where it listens" within 120 has_url other
    ready "$other"
    served "$other serve, 40 at once" requests want 40
    end other
done

if [ -d "$MOE" ]; then
    say "a mixture of experts"
    in_process moe_want requests "$MOE"
    in_process moe requests "$MOE" --split 2,2,2,2 --chunk 16
    alike "$MOE in 4 stages" moe moe_want
    serve moe "$MOE" --local-nodes 3 --threads 1
    ready
    sed -i 's/"model": "loom-demo"/"model": "loom-demo-moe"/' "$WORK/requests"
    served "$MOE on 3 nodes, 40 at once" requests moe_want 40
    end moe
else
    echo "left out: the mixture of experts needs $MOE"
fi
finish
