# Shared by the scripts that measure clusters on this machine: starts them, measures, and adds lines to a CSV.
# Sourced after test/e2e/lib.sh. A script sets $SERVE, the flags of `loom serve` for the model.
# shellcheck shell=bash disable=SC2034
RESULTS=${RESULTS:-bench/results}
NODE_MEMORY=${NODE_MEMORY:-6G}
SEED=0
command -v ss >/dev/null || { echo "skipped: needs ss (iproute2)"; exit 77; }

# What `loom serve` knows: --redundancy came later than the first clusters.
redundancy() { # none, spare or shadow
    "$LOOM" serve --help | grep -q -- --redundancy && echo "--redundancy $1"
}

# cluster NAME NODES MODEL: a head and its nodes, one thread each; sets $URL and $OF, what belongs to it.
cluster() {
    local name=$1 n=$2 model=$3 i join
    # shellcheck disable=SC2086
    LOOM_STATE="$WORK/$name.state" head_of "$name" "$model" --min-nodes "$n" $SERVE
    OF="head=${PID[$name]}"
    for ((i = 0; i < n; i++)); do
        join=$(LOOM_STATE="$WORK/$name.state" token)
        node "$name-$i" "$join"
        OF+=" node-$i=${PID[$name-$i]}"
    done
    ready "$name"
}

# alone NAME MODEL: one process with one thread.
alone() {
    # shellcheck disable=SC2086
    serve "$1" "$2" --threads 1 $SERVE
    OF="head=${PID[$1]}"
    ready "$1"
}

# measure FILE ARGS...: one measurement of $URL and $OF with prompts of its own, added to FILE as a line.
measure() {
    local file=$1
    shift
    SEED=$((SEED + 1))
    # shellcheck disable=SC2086
    python3 bench/measure.py "$URL" --of $OF --seed $SEED "$@" >>"$WORK/$file" || must "measuring $file" false
    [ -z "${VERBOSE:-}" ] || echo "$file $(tail -n 1 "$WORK/$file")"
}

# median FILE EXPRESSION: over the lines of FILE, each called d.
median() {
    python3 -c "import json, statistics, sys
print('%.5g' % statistics.median($2 for d in map(json.loads, open('$WORK/$1'))))"
}

calc() { python3 -c "print('%.4g' % ($1))"; }
processor() { sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1 | tr -s ', ' ' '; }

# add CSV COLUMNS LINE: date and processor come first.
add() {
    mkdir -p "$RESULTS"
    [ -s "$RESULTS/$1" ] || echo "date,cpu,$2" >"$RESULTS/$1"
    echo "$(date +%F),$(processor),$3" | tee -a "$RESULTS/$1"
}

# The weights that $SERVE asks for, and the width of a model.
weights() {
    echo "$SERVE" | sed -n 's/.*--weights \([a-z0-9_]*\).*/\1/p' | grep . && return
    if [ -f "$MODEL" ]; then echo as-is; else echo l8; fi
}
of_config() { value "$2" <"$1/config.json"; }
