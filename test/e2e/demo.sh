#!/bin/bash
# `loom demo`: an answer that goes on with the same bytes when a node is killed in its middle.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

BEFORE=$(ls -d /tmp/loom-demo-* 2>/dev/null)
ok "loom demo" timeout 300 "$LOOM" demo >"$WORK/demo.out" 2>"$WORK/demo.err"
ok "same bytes" grep -qx 'same bytes as undisturbed: yes' "$WORK/demo.out"
ok "a node was killed" grep -q 'kill -9 [0-9]' "$WORK/demo.out"
ok "in a pipe without colours" sh -c "! grep -q \"\$(printf '\\033')\" '$WORK/demo.out'"
ok "one blank on each side of it" grep -q '[^ ] \[kill -9 [0-9]*\] [^ ]' "$WORK/demo.out"
ok "the gap is told" grep -q '^gap: [0-9]* ms' "$WORK/demo.out"
ok "in Chinese" env LC_ALL=zh_CN.UTF-8 timeout 300 "$LOOM" demo >"$WORK/zh.out" 2>"$WORK/zh.err"
ok "the same line for programs" grep -qx 'same bytes as undisturbed: yes' "$WORK/zh.out"
ok "the answer was long enough at once" sh -c "! grep -q '再来一次' '$WORK/zh.out'"
ok "and goes on long after the kill" test "$(sed -n 's/.*其后还有 \([0-9]*\) 段.*/\1/p' "$WORK/zh.out")" -gt 40
ok "the rest is Chinese" grep -q '毫秒' "$WORK/zh.out"
ok "a question of one's own" timeout 300 "$LOOM" demo --question 'Count from 5 to 80' >"$WORK/own.out" 2>"$WORK/own.err"
ok "same bytes again" grep -qx 'same bytes as undisturbed: yes' "$WORK/own.out"
ok "another model that is not there: 1" sh -c "'$LOOM' demo --model nowhere >/dev/null 2>&1; test \$? -eq 1"
nobody() { [ -z "$(tagged)" ]; }
ok "no process is left" within 10 nobody
ok "nor a folder" equal "$BEFORE" "$(ls -d /tmp/loom-demo-* 2>/dev/null)"
finish
