#!/usr/bin/env python3
"""One measurement of a server that speaks OpenAI's completions, for the scripts beside this file.

measure.py URL [--streams N] [--prompt N] [--tokens N] [--seed S] [--body JSON] [--of NAME=PID ...] [--settle]
           [--strike PID --signal KILL --after N] [--patience S]

Sends N prompts at once, as token ids that follow from the seed, and reads the streams. It prints a JSON object:
  finished      streams that ended with a finish_reason, usage and [DONE], of `streams`; `why`: an error of the others
  tokens        answer tokens by usage; `hash` is over the texts of all streams
  ttft_ms       median time to the first piece of text
  decode_tps    tokens a second of all streams together, while all of them were decoding
  wall_s        from the first request to the last answer
  cpu_s         of each process named by --of, with its children: CPU seconds that it used meanwhile
  idle_cpu      the same, for a second without requests, before
  wire          {"a>b": bytes} that went from process a to process b over TCP, TLS and frames included, IP headers not
  idle_wire     the same, for a second without requests, before
  added_gap_ms  with --strike: the worst of those that ended well: its longest interval that ends after the signal,
                less its median interval of the 2 s before
With --settle the meters are read when the processes rest again. With --strike the process and its children get the
signal as soon as each stream has --after pieces; a stream that has not ended --patience seconds later is given up.
"""
import argparse
import hashlib
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

TICKS = os.sysconf("SC_CLK_TCK")
REST_CPU = 0.15  # of one processor, all processes together: heartbeats, but no computing
REST_WAIT_S = 120


def family(pid):
    """The process and all below it."""
    found = [pid]
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as f:
                for child in f.read().split():
                    found += family(int(child))
    except OSError:
        pass  # it ended meanwhile
    return found


def cpu_s(pid):
    ticks = 0
    for p in family(pid):
        try:
            with open("/proc/%d/stat" % p) as f:
                after_name = f.read().rpartition(")")[2].split()
            ticks += int(after_name[11]) + int(after_name[12])
        except OSError:
            pass
    return ticks / TICKS


def wire(processes):
    """Bytes received so far on each connection between two of the processes, by direction and connection."""
    owner = {p: name for name, pid in processes.items() for p in family(pid)}
    lines = subprocess.run(["ss", "-tnpiH", "state", "established"], capture_output=True, text=True).stdout.splitlines()
    ends, received, here = {}, {}, None
    for line in lines:
        if not line[:1].isspace():
            fields = line.split()
            here = (fields[2], fields[3])
            for pid in re.findall(r"pid=(\d+)", line):
                if int(pid) in owner:
                    ends[here] = owner[int(pid)]
        got = re.search(r"bytes_received:(\d+)", line)
        if got:
            received[here] = int(got.group(1))
    return {(ends[peer, local] + ">" + name, local, peer): received.get((local, peer), 0)
            for (local, peer), name in ends.items() if (peer, local) in ends}


def wire_between(before, after):
    total = {}
    for key, n in after.items():
        total[key[0]] = total.get(key[0], 0) + n - before.get(key, 0)
    return {edge: n for edge, n in sorted(total.items()) if n}


class Meters:
    def __init__(self, processes):
        self.processes = processes
        self.start()

    def start(self):
        self.cpu = {name: cpu_s(pid) for name, pid in self.processes.items()}
        self.bytes = wire(self.processes) if self.processes else {}

    def read(self):
        return ({name: round(cpu_s(pid) - self.cpu[name], 3) for name, pid in self.processes.items()},
                wire_between(self.bytes, wire(self.processes)) if self.processes else {})

    def wait_for_rest(self):
        until = time.time() + REST_WAIT_S
        while time.time() < until:
            before = sum(cpu_s(pid) for pid in self.processes.values())
            time.sleep(1)
            if sum(cpu_s(pid) for pid in self.processes.values()) - before < REST_CPU:
                return


class Stream:
    def __init__(self, url, body, patience_s):
        self.url, self.body, self.patience_s = urllib.parse.urlparse(url), body, patience_s
        self.times, self.text, self.usage, self.finish, self.done, self.why = [], [], {}, None, False, None
        self.give_up_at = None

    def run(self):
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=self.patience_s)
        self.sent = time.time()
        try:
            connection.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError("HTTP %d: %s" % (response.status, response.read(300).decode(errors="replace")))
            for line in response:
                if self.give_up_at and time.time() > self.give_up_at:
                    raise RuntimeError("not ended in time")
                if line.startswith(b"data: "):
                    self.take(line[6:].strip())
        except Exception as e:  # whatever it was, the stream has not ended well
            self.why = "%s: %s" % (type(e).__name__, e)
        finally:
            self.ended = time.time()
            connection.close()

    def take(self, data):
        if data == b"[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            raise RuntimeError("error event: %s" % event["error"].get("message"))
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            self.finish = choice.get("finish_reason") or self.finish
            if choice["text"]:
                self.text.append(choice["text"])
                self.times.append(time.time())

    def well(self):
        return bool(self.done and self.finish and self.usage and not self.why)


def strike(streams, pid, number, after, patience_s):
    """Waits for the moment, then signals, and says when; streams that end early are not waited for."""
    while any(len(s.times) < after and not hasattr(s, "ended") for s in streams):
        time.sleep(0.005)
    for p in family(pid):
        os.kill(p, number)
    now = time.time()
    for s in streams:
        s.give_up_at = now + patience_s
    return now


def added_gap_ms(streams, struck):
    worst = None
    for s in streams:
        steps = list(zip(s.times, s.times[1:]))
        before = [b - a for a, b in steps if struck - 2 <= a and b <= struck]
        after = [b - a for a, b in steps if b > struck]
        if s.well() and before and after:
            worst = max(worst or 0, 1e3 * (max(after) - statistics.median(before)))
    return worst and round(worst, 1)


def decode_tps(streams):
    """Pieces that came while all streams were decoding, scaled to tokens."""
    streams = [s for s in streams if len(s.times) > 1]
    if not streams:
        return None
    a, b = max(s.times[0] for s in streams), min(s.times[-1] for s in streams)
    if b <= a:
        return None
    pieces = sum(len(s.times) for s in streams)
    tokens = sum(s.usage.get("completion_tokens", len(s.times)) for s in streams)
    return sum(a < t <= b for s in streams for t in s.times) * tokens / pieces / (b - a)


def prompt_ids(seed, i, n):
    rng = random.Random("%d/%d" % (seed, i))
    return [rng.randrange(300, 3700) for _ in range(n)]


def model_of(url):
    u = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(u.hostname, u.port, timeout=30)
    connection.request("GET", "/v1/models")
    return json.loads(connection.getresponse().read())["data"][0]["id"]


def report(streams, meters, struck):
    used, sent = meters.read()
    well = [s for s in streams if s.well()]
    first = [s.times[0] - s.sent for s in streams if s.times]
    tps = decode_tps(streams)
    whole = json.dumps(["".join(s.text) for s in streams]).encode()
    return {"streams": len(streams), "finished": len(well), "why": next((s.why for s in streams if s.why), None),
            "tokens": sum(s.usage.get("completion_tokens", 0) for s in streams),
            "ttft_ms": round(1e3 * statistics.median(first), 2) if first else None,
            "decode_tps": round(tps, 2) if tps else None,
            "wall_s": round(max(s.ended for s in streams) - min(s.sent for s in streams), 3),
            "hash": hashlib.sha256(whole).hexdigest()[:16], "cpu_s": used, "wire": sent,
            "added_gap_ms": struck and added_gap_ms(streams, struck)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url")
    p.add_argument("--streams", type=int, default=1)
    p.add_argument("--prompt", type=int, default=16)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--body", type=json.loads, default={})
    p.add_argument("--of", nargs="*", default=[])
    p.add_argument("--settle", action="store_true")
    p.add_argument("--strike", type=int)
    p.add_argument("--signal", default="KILL")
    p.add_argument("--after", type=int, default=16)
    p.add_argument("--patience", type=float, default=600)
    a = p.parse_args()

    body = {"model": model_of(a.url), "max_tokens": a.tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **a.body}
    streams = [Stream(a.url, {**body, "prompt": prompt_ids(a.seed, i, a.prompt)}, a.patience) for i in range(a.streams)]
    meters = Meters({name: int(pid) for name, pid in (x.split("=") for x in a.of)})
    idle = ({}, {})
    if a.of and not a.strike:
        time.sleep(1)
        idle = meters.read()
        meters.start()
    threads = [threading.Thread(target=s.run) for s in streams]
    for t in threads:
        t.start()
    struck = None
    if a.strike:
        struck = strike(streams, a.strike, getattr(signal, "SIG" + a.signal), a.after, a.patience)
    for t in threads:
        t.join()
    if a.settle:
        meters.wait_for_rest()
    print(json.dumps({**report(streams, meters, struck), "idle_cpu": idle[0], "idle_wire": idle[1]}))


if __name__ == "__main__":
    sys.exit(main())
