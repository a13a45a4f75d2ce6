#!/usr/bin/env python3
"""Streams that come back when they break, for restart.sh.

lib_resume.py make [--n 8] [--tokens 300]                     requests, one JSON object a line
lib_resume.py send URL REQUESTS --out ANSWERS [--patience S]  all at once; prints a summary of the breaks

An answer is as lib_load.py has it, so that its `compare` takes it; of several choices "text" and "finish" have all.
"breaks": for each, when it came, and the seconds until the next event was there.
"""
import argparse
import http.client
import json
import sys
import threading
import time
import urllib.parse

import lib_load


def make(n, tokens):
    """Counting, which goes on as long as one likes: greedy and drawn, with two choices, with a stop string, chats."""
    requests = []
    for i in range(n):
        body = {"max_tokens": tokens - 40 * i, "temperature": 0 if i % 3 == 0 else 0.4, "seed": 500 + i, "top_p": 0.95,
                "top_k": 0, "min_p": 0.05}
        if i % 4 == 1:
            body["n"] = 2
        if i % 4 == 2:
            body["stop"] = [", 299", "never said"]
        r = lib_load.complete(", ".join(str(i + k) for k in range(1, 9)) + ",", body)
        if i % 4 == 3:
            r = lib_load.chat("Count from %d to 80" % i, body)
        requests.append({"i": i, **r})
    return requests


class Stream:
    """One answer, however many connections it takes."""

    def __init__(self, url, request, patience):
        self.host = urllib.parse.urlparse(url)
        self.request, self.patience = request, patience
        self.last = self.usage = None
        self.texts, self.finish, self.breaks = {}, {}, []
        self.done = False

    def take(self, event):
        if "error" in event:
            raise ConnectionError("error event: " + event["error"]["message"])
        self.usage = event.get("usage") or self.usage
        for c in event["choices"]:
            piece = c["delta"].get("content", "") if "delta" in c else c["text"]
            self.texts[c["index"]] = self.texts.get(c["index"], "") + piece
            self.finish[c["index"]] = c["finish_reason"] or self.finish.get(c["index"])

    def read(self, response):
        event_id = None
        for line in response:
            line = line.decode().rstrip("\n")
            if line.startswith("id: "):
                event_id = line[4:]
            elif line == "data: [DONE]":
                self.done = True
            elif line.startswith("data: "):
                self.take(json.loads(line[6:]))
                self.last, event_id = event_id or self.last, None
                if self.breaks and self.breaks[-1][1] is None:
                    self.breaks[-1][1] = round(time.time() - self.breaks[-1][0], 4)

    def connect(self):
        body = dict(self.request["body"], stream=True, stream_options={"include_usage": True})
        headers = {"Content-Type": "application/json"}
        if self.last:
            headers["Last-Event-ID"] = self.last
        c = http.client.HTTPConnection(self.host.hostname, self.host.port, timeout=120)
        try:
            c.request("POST", self.request["path"], json.dumps(body), headers)
            r = c.getresponse()
            if r.status != 200:
                text = r.read(500).decode(errors="replace")
                kind = ConnectionError if r.status == 503 else RuntimeError
                raise kind("HTTP %d: %s" % (r.status, text))
            self.read(r)
        finally:
            c.close()

    def run(self):
        until = time.time() + self.patience
        while not self.done:
            try:
                self.connect()
                if not self.done:
                    raise ConnectionError("the stream ended")
            except (ConnectionError, http.client.HTTPException, OSError) as e:
                now = time.time()
                if not self.last or now > until:
                    raise RuntimeError("lost: %s" % e) from e
                if not self.breaks or self.breaks[-1][1] is not None:
                    self.breaks.append([now, None])
                time.sleep(0.02)


def send_one(url, request, patience, answers, lock):
    a = {"i": request["i"]}
    s = Stream(url, request, patience)
    try:
        s.run()
        a["text"] = json.dumps([s.texts[k] for k in sorted(s.texts)], ensure_ascii=False)
        a["finish"] = json.dumps([s.finish[k] for k in sorted(s.finish)])
        a["prompt_tokens"], a["completion_tokens"] = s.usage["prompt_tokens"], s.usage["completion_tokens"]
        lib_load.finish_answer(a)
    except Exception as e:  # whatever went wrong is this request's result
        a["error"] = "%s: %s" % (type(e).__name__, e)
    a["breaks"] = s.breaks
    with lock:
        answers.append(a)


def send(url, requests, patience):
    answers, lock = [], threading.Lock()
    threads = [threading.Thread(target=send_one, args=(url, r, patience, answers, lock)) for r in requests]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sorted(answers, key=lambda a: a["i"])


def main():
    p = argparse.ArgumentParser(description=__doc__)
    sub = p.add_subparsers(dest="verb", required=True)
    s = sub.add_parser("make")
    s.add_argument("--n", type=int, default=8)
    s.add_argument("--tokens", type=int, default=300)
    s = sub.add_parser("send")
    s.add_argument("url")
    s.add_argument("requests")
    s.add_argument("--out", required=True)
    s.add_argument("--patience", type=float, default=60)
    a = p.parse_args()
    if a.verb == "make":
        for r in make(a.n, a.tokens):
            print(json.dumps(r, ensure_ascii=False))
        return 0
    answers = send(a.url, lib_load.read_lines(a.requests), a.patience)
    lib_load.write_lines(a.out, answers)
    waits = sorted(b[1] for x in answers for b in x["breaks"] if b[1] is not None)
    tokens = sum(x.get("completion_tokens", 0) for x in answers)
    print("%d answers, %d tokens, %d breaks%s" % (len(answers), tokens, len(waits), (
        ", resumed after %.3f s (median), %.3f s (worst)" % (waits[len(waits) // 2], waits[-1])) if waits else ""))
    failed = [x for x in answers if "error" in x]
    for x in failed[:5]:
        print("  request %d: %s" % (x["i"], x["error"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
