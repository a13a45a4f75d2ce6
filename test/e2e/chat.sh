#!/bin/bash
# `loom chat`: what an endpoint may answer, at a terminal and in a pipe.
# shellcheck source=test/e2e/lib.sh
. "$(dirname "$0")/lib.sh"

LOG="$WORK/messages"
start endpoint python3 "$E2E/lib_endpoint.py" "$LOG"
has_url_line() { [ -s "$WORK/endpoint.out" ]; }
must "the endpoint says where it listens" within 20 has_url_line
URL=$(cat "$WORK/endpoint.out")

chat() { timeout 60 "$LOOM" chat --url "$URL" "$@" >"$WORK/out" 2>"$WORK/err"; }
says() { grep -qF -- "$1" "$WORK/err" && return 0; echo "  want '$1' in: $(cat "$WORK/err")"; return 1; }
broken() { # HOW TEXT: exit code 1 and one line that holds TEXT
    chat -p "$1"
    equal 1 $? && says "$2" && equal 1 "$(wc -l <"$WORK/err")"
}
last() { tail -n 1 "$LOG" | value "$1"; } # of the messages of the last request, called d

say "one question"
for how in good tight; do
    ok "-p $how" chat -p "$how"
    ok "$how is answered" equal fine "$(cat "$WORK/out")"
done
for how in open junk types number delta array nothing choiceless error; do
    ok "-p $how" broken "$how" "the answer broke off"
done
ok "the reason is told, and does not colour the terminal" broken error 'the lights went ?[31mout'
ok "a refusal" broken refuse "not today"
ok "an endless list of models" equal 1 "$(URL=$URL/huge; chat -p good; echo $?)"
ok "is told as such" says "more than 1048576 bytes"
ok "nobody there" equal 1 "$(URL=http://127.0.0.1:1; chat -p good; echo $?)"
ok "what to start is named" says "loom serve"
ok "--url too long" equal 2 "$(URL=http://$(printf '%02000d' 0); chat -p good; echo $?)"

say "a conversation in a pipe"
printf '1 good\n2 open\n3 refuse\n4 good\n' | chat --system Brief
ok "ends with 1, as two were not answered" equal 1 $?
ok "each is told once" equal 2 "$(wc -l <"$WORK/err")"
ok "only the answered ones are remembered" equal "Brief,1 good,fine,4 good" "$(last '",".join(m["content"] for m in d)')"
printf '1 good\n2 good\n' | chat
ok "ends with 0 if all were" equal 0 $?
printf '1 good\n/new\n2 good\n' | chat --system Brief
ok "/new keeps --system, and nothing else" equal "Brief,2 good" "$(last '",".join(m["content"] for m in d)')"
printf '\xff\n2 good\n' | chat
ok "a line that is no text" equal 1 $?
ok "is told" says "UTF-8"
chat -p escape
ok "the bytes of an answer stay what they are" equal $'a\e]52;c;aGk=\ab' "$(cat "$WORK/out")"
chat -p think
ok "no colours" equal $'hm\nfine' "$(cat "$WORK/out")"

say "a conversation at a terminal"
cat >"$WORK/terminal.py" <<'END'
# terminal.py COMMAND...: types the lines of stdin into a terminal in which it runs; its output goes to stdout.
import os, pty, select, sys, time
lines = sys.stdin.read().splitlines()
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
out, end = b"", time.time() + 60
while time.time() < end:
    if lines and out.endswith(b"> "):
        os.write(fd, lines.pop(0).encode() + b"\n")
        out += b"\n"
    elif out.endswith(b"\n> ") or (not lines and out.endswith(b"> ")):
        os.write(fd, b"\x04")
        out += b"\n"
    if not select.select([fd], [], [], 1)[0]:
        continue
    try:
        got = os.read(fd, 4096)
    except OSError:
        break
    if not got:
        break
    out += got
sys.stdout.buffer.write(out)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
terminal() { timeout 90 python3 "$WORK/terminal.py" "$LOOM" chat --url "$URL" >"$WORK/out"; }
printf '1 error\n2 good\n3 good\n' | terminal
ok "ends well" equal 0 $?
ok "one answer that broke off breaks no other" equal 1 "$(grep -c 'the answer broke off' "$WORK/out")"
ok "whose questions stay" equal "2 good,fine,3 good" "$(last '",".join(m["content"] for m in d)')"
printf 'escape\n' | terminal
ok "nor can a model's name colour it" grep -qF 'any^[[31m (' "$WORK/out"
ok "an answer cannot write to the clipboard" grep -qF 'a^[]52;c;aGk=^Gb' "$WORK/out"
printf 'think\n' | terminal
ok "what is thought is dim" grep -qF $'\e[2mhm\e[0m' "$WORK/out"
finish
