#!/bin/bash
# A head comes back with another model of the same shape: nodes that stayed must compute with its weights, not with what
# they still hold.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

answer() { # of the head at $URL
    curl -s -m 60 "$URL/v1/completions" -d '{"model": "m", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}' |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["choices"][0]["text"])'
}

say "two models of one shape"
mkdir "$WORK/a" "$WORK/b"
cp -r "$MODEL" "$WORK/a/m"
cp -r "$MODEL" "$WORK/b/m"
python3 - "$WORK/b/m" <<'END'
import glob, json, struct, sys
for path in glob.glob(sys.argv[1] + "/*.safetensors"):
    raw = bytearray(open(path, "rb").read())
    n = struct.unpack("<Q", raw[:8])[0]
    at = {k: [8 + n + x for x in v["data_offsets"]] for k, v in json.loads(raw[8:8 + n]).items() if k != "__metadata__"}
    one, two = (at.get("model.layers.%d.mlp.up_proj.weight" % i) for i in (0, 1))
    if one and two:
        raw[one[0]:one[1]], raw[two[0]:two[1]] = raw[two[0]:two[1]], raw[one[0]:one[1]]
        open(path, "wb").write(raw)
END
ok "they differ" test "$(cat "$WORK"/a/m/*.safetensors | cksum)" != "$(cat "$WORK"/b/m/*.safetensors | cksum)"
serve plain_a "$WORK/a/m" --context 512
ready plain_a
A=$(answer)
end plain_a
serve plain_b "$WORK/b/m" --context 512
ready plain_b
B=$(answer)
end plain_b
ok "and so do their answers" test "$A" != "$B"

say "the nodes stay, the head comes back with the other one"
PORT=$(free_port)
serve head_a "$WORK/a/m" --context 512 --cluster "127.0.0.1:$PORT" --min-nodes 2
TOKEN=$(token --uses 2)
node one "$TOKEN"
node two "$TOKEN"
ready head_a
ok "the first model" equal "$A" "$(answer)"
end head_a
serve head_b "$WORK/b/m" --context 512 --cluster "127.0.0.1:$PORT" --min-nodes 2
ready head_b
ok "the second model" equal "$B" "$(answer)"
finish
