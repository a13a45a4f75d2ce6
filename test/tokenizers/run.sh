#!/usr/bin/env bash
# Tokenizers of well-known models against the reference, on some megabytes of nasty text. LOOM: the program (build/loom);
# token_ids is built beside it. The reference comes from the npm registry, into the build folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
ids=$(dirname "${LOOM:-$root/build/loom}")/test/token_ids
folder=$root/build/tokenizers

for tool in node npm; do
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: needs $tool"
        exit 77
    fi
done
if ! node -e 'process.exit(parseInt(process.versions.node) >= 18 ? 0 : 1)'; then
    echo "skipped: needs node 18 or later, here is $(node --version)"
    exit 77
fi
mkdir -p "$folder"
if ! cmp -s "$here/package-lock.json" "$folder/installed"; then
    cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$folder/"
    if ! (cd "$folder" && npm ci --no-audit --no-fund --silent); then
        echo "skipped: needs the npm registry"
        exit 77
    fi
    cp "$here/package-lock.json" "$folder/installed"
fi
exec node "$here/compare.mjs" "$folder" "$ids"
