"""Requests under way while a cluster is disturbed: one thread sends them, reads the streams, and goes on after a loss.

What an answer has to be is known beforehand: an undisturbed server of one process gave it, and `loom run` the same.
A stream whose connection breaks is taken up again with Last-Event-ID; only if the head never gave it an event id (or the
answer was no stream) it is sent anew.
"""
import collections
import http.client
import json
import os
import random
import selectors
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import lib_load  # noqa: E402

PATIENCE_S = 120  # an answer that has not come on for so long is lost


def counting(first, n):
    return ", ".join(str(first + k) for k in range(n)) + ","


def prompt_of(ask, tokens, first):
    """A text to be counted on from, of about so many tokens (ask: tokens of a text)."""
    n = max(2, tokens // 5)
    n = max(2, n * tokens // max(1, ask(counting(first, n))))
    return counting(first, n)


def make(seed, n, tokens, contexts, ask, model):
    """Greedy and drawn, one choice and two, with and without stop strings, short and long prompts."""
    rng = random.Random(seed)
    made = []
    for i in range(n):
        context = contexts[i % len(contexts)]
        body = {"max_tokens": rng.randrange(tokens // 3, tokens + 1), **lib_load.sampling_of(rng, rng.randrange(3))}
        if context:
            path, body["prompt"] = "/v1/completions", prompt_of(ask, context, rng.randrange(1, 90))
        elif i % 2:
            path = "/v1/chat/completions"
            body.update(messages=[{"role": "user", "content": lib_load.story(rng)}],
                        chat_template_kwargs={"enable_thinking": False})
        else:
            path, body["prompt"] = "/v1/completions", counting(rng.randrange(1, 60), 8)
        if i % 5 == 1:
            body["n"] = 2
        if i % 5 == 3:
            body["stop"] = [rng.choice(["0,", "7", "!", "\n\n", " and "])]
        made.append({"i": i, "path": path, "body": {"model": model, **body}})
    return made


class Answer:
    """What came of one request: the text of each choice, and when its pieces came."""

    def __init__(self):
        self.text, self.finish, self.times = collections.defaultdict(list), {}, collections.defaultdict(list)
        self.usage = None

    def take(self, event, now):
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            k = choice["index"]
            piece = (choice.get("delta", choice.get("message", choice))).get(
                "content" if "delta" in choice or "message" in choice else "text") or ""
            if piece:
                self.text[k].append(piece)
                self.times[k].append(now)
            self.finish[k] = choice["finish_reason"] or self.finish.get(k)

    def whole(self):
        """Everything that has to be equal, so that two of them can be compared."""
        return {"text": ["".join(self.text[k]) for k in sorted(self.finish)],
                "finish": [self.finish[k] for k in sorted(self.finish)],
                "prompt_tokens": self.usage["prompt_tokens"], "completion_tokens": self.usage["completion_tokens"]}


def post(host, port, request, timeout=300):
    """One request without a stream, in the calling thread."""
    c = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        c.request("POST", request["path"], json.dumps(request["body"]), {"Content-Type": "application/json"})
        r = c.getresponse()
        body = r.read()
        if r.status != 200:
            raise RuntimeError("request %s: HTTP %d: %s" % (request.get("i"), r.status, body[:300]))
        a = Answer()
        a.take(json.loads(body), time.monotonic())
        return a
    finally:
        c.close()


class Flow:
    """One request, through as many connections as it takes."""

    def __init__(self, request, stream, cancel_after=None):
        self.request, self.stream, self.cancel_after = request, stream, cancel_after
        self.answer, self.error, self.done, self.cancelled = Answer(), None, False, False
        self.resumed = self.resent = self.pieces = 0
        self.last_id = None
        self.began = self.progress = time.monotonic()
        self.socket = None
        self.resume_ms = []  # how long until a broken stream went on
        self.broken_at = None

    def open(self, address):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.connect_ex(address)
        body = dict(self.request["body"])
        if self.stream:
            body.update(stream=True, stream_options={"include_usage": True})
        data = json.dumps(body).encode()
        if not self.last_id:
            self.resent += bool(self.pieces)
            self.answer, self.pieces = Answer(), 0
        head = ["POST %s HTTP/1.1" % self.request["path"], "Host: loom", "Connection: close",
                "Content-Type: application/json", "Content-Length: %d" % len(data)]
        head += ["Last-Event-ID: " + self.last_id] if self.last_id else []
        self.out = "\r\n".join(head + ["", ""]).encode() + data
        self.raw, self.body, self.line = b"", b"", b""
        self.status, self.chunked, self.length, self.retry_after = None, False, None, 0.2

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None

    def headers(self):
        """Whether the header of the response is complete."""
        end = self.raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        lines = self.raw[:end].decode("latin-1").split("\r\n")
        self.raw = self.raw[end + 4:]
        self.status = int(lines[0].split()[1])
        fields = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        self.chunked = fields.get("transfer-encoding", "").lower() == "chunked"
        self.length = int(fields["content-length"]) if "content-length" in fields else None
        self.retry_after = min(float(fields.get("retry-after", 0.2)), 1)
        return True

    def unchunk(self):
        """Moves whole chunks from raw to body; whether the last one was there."""
        while True:
            end = self.raw.find(b"\r\n")
            if end < 0:
                return False
            size = int(self.raw[:end].split(b";")[0], 16)
            if len(self.raw) < end + 2 + size + 2:
                return False
            self.body += self.raw[end + 2:end + 2 + size]
            self.raw = self.raw[end + 4 + size:]
            if size == 0:
                return True

    def feed(self, data, now):
        """Takes what came; whether the response is complete."""
        self.raw += data
        if self.status is None and not self.headers():
            return False
        if self.chunked:
            complete = self.unchunk()
        else:
            self.body, self.raw = self.body + self.raw, b""
            complete = self.length is not None and self.received() >= self.length
        if self.status == 200 and self.stream:
            self.events(now)
        return complete

    def received(self):
        return len(self.body)

    def events(self, now):
        *blocks, self.body = self.body.split(b"\n\n")
        for block in blocks:
            for line in block.split(b"\n"):
                if line.startswith(b"id:"):
                    self.last_id = line[3:].strip().decode()
                if line.startswith(b"data:"):
                    self.event(line[5:].strip(), now)

    def event(self, data, now):
        self.progress = now
        if self.broken_at:
            self.resume_ms.append((now - self.broken_at) * 1e3)
            self.broken_at = None
        if data == b"[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = "error event: %s" % event["error"]["message"]
            return
        self.pieces += 1
        self.answer.take(event, now)

    def finished(self, now):
        """The response is complete, or its connection ended. Whether this flow is over; else it is to be opened again."""
        if self.error or self.done:
            return True
        if self.status == 503 or self.status is None or (self.status == 200 and self.stream):
            self.broken_at = self.broken_at or (now if self.pieces else None)
            self.resumed += bool(self.last_id) and self.status == 200
            return False
        if self.status != 200:
            self.error = "HTTP %d%s: %s" % (self.status, " to Last-Event-ID" if self.last_id else "", self.body[:300])
            return True
        if self.length is not None and len(self.body) < self.length:
            return False
        self.answer.take(json.loads(self.body), now)
        self.done, self.progress = True, now
        return True


class Traffic(threading.Thread):
    """Keeps at_once requests under way until stop(), or sends just those given to add()."""

    def __init__(self, address, requests, at_once, seed, streams="mixed", cancels=True):
        super().__init__(daemon=True)
        self.address, self.requests, self.at_once = address, requests, at_once
        self.streams, self.cancels, self.rng = streams, cancels, random.Random(seed)
        self.selector, self.flows, self.retries = selectors.DefaultSelector(), set(), []
        self.finished, self.turn, self.paused, self.stopping = [], 0, False, False
        self.failure = None

    def next_flow(self):
        request = self.requests[self.turn % len(self.requests)]
        self.turn += 1
        stream = self.streams == "yes" or (self.streams == "mixed" and self.turn % 5 != 0)
        cancel = self.rng.randrange(2, 40) if self.cancels and stream and self.rng.random() < 0.06 else None
        return Flow(request, stream, cancel)

    def begin(self, flow):
        self.flows.add(flow)
        flow.open(self.address)
        self.selector.register(flow.socket, selectors.EVENT_WRITE, flow)

    def drop(self, flow):
        self.selector.unregister(flow.socket)
        flow.close()

    def over(self, flow):
        self.flows.discard(flow)
        self.finished.append(flow)

    def again(self, flow, now):
        if now - flow.progress > PATIENCE_S:
            flow.error = flow.error or "no answer for %d s, last status %s" % (PATIENCE_S, flow.status)
            self.over(flow)
            return
        self.retries.append((now + (flow.retry_after if flow.status == 503 else 0.05), flow))

    def ready(self, flow, mask):
        now, over = time.monotonic(), False
        try:
            if mask & selectors.EVENT_WRITE:
                flow.out = flow.out[flow.socket.send(flow.out):]
                if not flow.out:
                    self.selector.modify(flow.socket, selectors.EVENT_READ, flow)
                return
            data = flow.socket.recv(1 << 18)
            over = flow.feed(data, time.monotonic()) or not data
        except BlockingIOError:
            return
        except OSError:
            over = True
        except (ValueError, KeyError) as e:
            flow.error = over = "nonsense from the head: %r" % e
        if flow.cancel_after is not None and flow.pieces >= flow.cancel_after and not flow.done:
            flow.cancelled = over = True
        if not over:
            return
        self.drop(flow)
        if flow.cancelled or flow.finished(now):
            self.over(flow)
        else:
            self.again(flow, now)

    def idle(self, now):
        due = [f for t, f in self.retries if t <= now]
        self.retries = [(t, f) for t, f in self.retries if t > now]
        for f in due:
            self.begin(f)
        for f in [f for f in self.flows if f.socket and now - f.progress > PATIENCE_S]:
            self.drop(f)
            f.error = "no progress for %d s" % PATIENCE_S
            self.over(f)
        while len(self.flows) < self.at_once and not self.paused and not self.stopping:
            self.begin(self.next_flow())

    def run(self):
        try:
            while self.flows or not self.stopping:
                self.idle(time.monotonic())
                for key, mask in self.selector.select(0.02):
                    self.ready(key.data, mask)
        except BaseException as e:  # the harness must not wait for a thread that is gone
            self.failure = e
            raise

    def wait_idle(self, seconds):
        end = time.monotonic() + seconds
        while self.flows and time.monotonic() < end and not self.failure:
            time.sleep(0.05)
        return not self.flows

    def stop(self, seconds):
        """No new requests; whether all under way ended in time."""
        self.stopping = True
        self.join(seconds)
        return not self.is_alive()


def verdicts(flows, want):
    """(wrong, lost): descriptions of the answers that differ, and of those that never came."""
    wrong, lost = [], []
    for f in flows:
        i = f.request["i"]
        if f.cancelled:
            continue
        if f.error or not f.done:
            lost.append("request %d: %s" % (i, f.error or "it ended without [DONE]"))
        elif not f.answer.usage:
            wrong.append("request %d: no usage" % i)
        elif f.answer.whole() != want[i]:
            got = f.answer.whole()
            keys = [k for k in want[i] if got[k] != want[i][k]]
            wrong.append("request %d (%d resumed, %d resent): %s" % (i, f.resumed, f.resent, "; ".join(
                "%s is %s, not %s" % (k, str(got[k])[-300:], str(want[i][k])[-300:]) for k in keys)))
    return wrong, lost


def added_gaps(flows, begin, window):
    """(added gap, median before) in ms of each stream under way: its longest interval that ends after begin and starts
    within the window, less the median of its intervals of the 2 s before."""
    found = []
    for f in flows:
        for times in f.answer.times.values():
            pairs = [(a, b) for a, b in zip(times, times[1:]) if b > begin - 2 and a < begin + window]
            before = sorted(b - a for a, b in pairs if b <= begin)
            after = [b - a for a, b in pairs if b > begin]
            if len(before) >= 5 and after:
                median = before[len(before) // 2]
                found.append(((max(after) - median) * 1e3, median * 1e3))
    return found


def worst_interval(flows, begin, window):
    """The longest interval of any stream that added_gaps looks at: from and to, in ms after begin."""
    found = [(b - a, a, b) for f in flows for times in f.answer.times.values() for a, b in zip(times, times[1:])
             if b > begin and a < begin + window]
    _, a, b = max(found, default=(0, begin, begin))
    return (a - begin) * 1e3, (b - begin) * 1e3


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")
