"""lib_endpoint.py LOG: an endpoint on the loopback whose answers break off. The first line on stdout is its URL.

The last word of the last message says how it answers, see STREAMS; LOG gets the messages of each request as a JSON line.
"""
import http.server
import json
import sys


def say(text, **more):
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text, **more}}]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
STREAMS = {
    "good": say("fine") + DONE,
    "tight": say("fine").replace(b"data: ", b"data:").replace(b"\n", b"\r\n") + b"data:[DONE]",
    "open": say("half"),
    "junk": say("half") + b"data: {junk\n\n" + DONE,
    "types": b'data: {"choices": 5}\n\n' + DONE,
    "number": b'data: {"choices": [{"delta": {"content": 5}}]}\n\n' + DONE,
    "delta": b'data: {"choices": [{"delta": []}]}\n\n' + DONE,
    "array": b"data: []\n\n" + DONE,
    "nothing": b"",
    "choiceless": b'data: {"id": "x"}\n\n' + DONE,
    "error": say("half") + b'data: {"error": {"message": "the lights went \\u001b[31mout"}}\n\n',
    "escape": say("a\x1b]52;c;aGk=\x07b") + DONE,
    "think": say(None, reasoning_content="hm") + say("fine") + DONE,
}


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, body, status=200):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        huge = self.path.startswith("/huge/")
        try:
            self.answer(b" " * (2 << 20) if huge else b'{"data": [{"id": "any\\u001b[31m"}]}')
        except (BrokenPipeError, ConnectionResetError):
            pass

    def do_POST(self):
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        with open(sys.argv[1], "a", encoding="utf-8") as log:
            log.write(json.dumps(messages) + "\n")
        how = messages[-1]["content"].split()[-1]
        if how == "refuse":
            return self.answer(b'{"error": {"message": "not today"}}', 400)
        return self.answer(STREAMS[how])


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
