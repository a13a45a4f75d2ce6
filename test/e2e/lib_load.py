#!/usr/bin/env python3
"""Requests for the e2e scripts: makes them, sends them, and compares the answers.

lib_load.py make [--n 40] [--tokens 48] [--kind mixed|long|count]  requests, one JSON object a line, always the same ones
lib_load.py send URL REQUESTS [--at-once 40] [--stream yes|no|mixed] [--seconds S] --out ANSWERS
lib_load.py run LOOM MODEL REQUESTS [--jobs 2] --out ANSWERS [-- FLAGS...]   each request by `loom run --json`
lib_load.py compare WANT GOT...                                   exit code 1 if an answer or its usage differs
lib_load.py gaps ANSWERS KILLS STATUS                             a summary line of a run with kills (times, one a line)
lib_load.py gap_row ANSWERS KILLS                                 streams, median, worst and median added gap, for a CSV

An answer: {"i", "text", "finish", "prompt_tokens", "completion_tokens", "hash"}; of a stream "times" too, when its
pieces came, in seconds since 1970. A request that failed has "error". With --seconds the requests are sent over and over
until the time is up; all that were begun are waited for.
"""
import argparse
import concurrent.futures
import hashlib
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.parse

ANIMALS = ["dog", "frog", "cat", "whale", "tiger", "horse", "rabbit", "mouse"]
NAMES = ["Gus", "Yara", "Mia", "Omar", "Quinn", "Rosa", "Ivan", "Noor", "Ben", "Lin"]
CHATS = ["Hi!", "你好", "What is 17 + 25?", "Calculate 18 × 3.", "9 ÷ 9等于多少？", "Reverse the word 'tea'.", "从1数到50。",
         "Count from 5 to 80", "Translate 'water' into Chinese.", "Baghdad is the capital of which country?",
         "Spell the word funny.", "Ada is 65 years old, lives in Paris and likes orange. Reply with a JSON object with "
         "the keys name, colour, age, city."]
SENTENCES = ["One day they walked to the village together and talked all day.", "从前，有一只小狗叫莉莉。",
             "It began to rain, so they hid under a big tree.", "Kim bought 31 apples in Athens on Monday.",
             "Remember this: the pass code of Sam is 8146."]


def sampling_of(rng, i):
    """A third greedy, the rest drawn with seeds and all kinds of filters."""
    if i % 3 == 0:
        return {"temperature": 0}
    s = {"temperature": round(rng.uniform(0.5, 1.4), 2), "seed": rng.randrange(1 << 40),
         "top_p": 1, "top_k": 0, "min_p": 0}
    if i % 3 == 1:
        s["top_p"] = round(rng.uniform(0.7, 1.0), 2)
        s["top_k"] = rng.choice([0, 5, 20, 40])
    else:
        s["min_p"] = round(rng.uniform(0.0, 0.1), 3)
    return s


def story(rng):
    return "Tell me a story about a %s named %s." % (rng.choice(ANIMALS), rng.choice(NAMES))


def mixed(rng, i, tokens):
    """Half chats, half completions; prompts from a few tokens to several KV blocks."""
    body = {"max_tokens": rng.randrange(8, tokens + 1), **sampling_of(rng, i)}
    if i % 2 == 0:
        text = story(rng) if i % 4 == 0 else rng.choice(CHATS)
        if i % 8 == 0:
            text = " ".join(rng.choice(SENTENCES) for _ in range(rng.choice([3, 12, 30]))) + "\n\n" + text
        return chat(text, body)
    before = [rng.choice(SENTENCES) for _ in range(rng.choice([0, 0, 1, 6, 24]))]
    return complete(" ".join(before + ["Once upon a time there was a " + rng.choice(ANIMALS)]), body)


def long(rng, i, tokens):
    """Answers that take a while: counting to the last token, and stories of about 130."""
    body = {"max_tokens": tokens, "temperature": 0.9, "seed": 1000 + i, "top_p": 0.95, "top_k": 0, "min_p": 0}
    if i % 4 == 0:
        body = {"max_tokens": tokens, "temperature": 0}
    if i % 2:
        return chat(story(rng), body)
    start = rng.randrange(1, 60)
    return complete(", ".join(str(start + k) for k in range(8)) + ",", {**body, "temperature": min(body["temperature"], 0.5)})


def count(rng, i, tokens):
    """Nothing but counting: the longest answers that the model gives."""
    return complete(", ".join(str(i + k) for k in range(1, 9)) + ",", {"max_tokens": tokens, "temperature": 0})


def chat(text, body):
    return {"path": "/v1/chat/completions", "body": {"model": "loom-demo", **body, "messages": [
        {"role": "user", "content": text}], "chat_template_kwargs": {"enable_thinking": False}}}


def complete(text, body):
    return {"path": "/v1/completions", "body": {"model": "loom-demo", **body, "prompt": text}}


def make(n, tokens, kind):
    rng = random.Random(20)
    one = {"mixed": mixed, "long": long, "count": count}[kind]
    return [{"i": i, **one(rng, i, tokens)} for i in range(n)]


def finish_answer(a):
    whole = [a["text"], a["prompt_tokens"], a["completion_tokens"], a["finish"]]
    a["hash"] = hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:16]
    return a


def read_stream(response, a):
    text, done, usage = [], False, None
    a["times"] = []
    for line in response:
        if not line.startswith(b"data: "):
            continue
        now, data = time.time(), line[6:].strip()
        if data == b"[DONE]":
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            raise RuntimeError("error event: " + event["error"]["message"])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            if piece:
                text.append(piece)
                a["times"].append(now)
            a["finish"] = choice["finish_reason"] or a.get("finish")
    if not done or not usage:
        raise RuntimeError("the stream ended without [DONE] and usage, after %d pieces" % len(text))
    a["text"] = "".join(text)
    return usage


def send_one(url, request, stream):
    """One request on a connection of its own."""
    a = {"i": request["i"], "sent": time.time()}
    host = urllib.parse.urlparse(url)
    connection = http.client.HTTPConnection(host.hostname, host.port, timeout=300)
    body = dict(request["body"])
    if stream:
        body.update(stream=True, stream_options={"include_usage": True})
    try:
        connection.request("POST", request["path"], json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError("HTTP %d: %s" % (response.status, response.read(500).decode(errors="replace")))
        if stream:
            usage = read_stream(response, a)
        else:
            whole = json.loads(response.read())
            choice, usage = whole["choices"][0], whole["usage"]
            a["text"] = choice["message"]["content"] if "message" in choice else choice["text"]
            a["finish"] = choice["finish_reason"]
        if usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
            raise RuntimeError("the usage does not add up: %s" % usage)
        a["prompt_tokens"], a["completion_tokens"] = usage["prompt_tokens"], usage["completion_tokens"]
        finish_answer(a)
    except Exception as e:  # whatever went wrong is this request's result
        a["error"] = "%s: %s" % (type(e).__name__, e)
    finally:
        connection.close()
    a["ended"] = time.time()
    return a


def send(url, requests, at_once, stream, seconds):
    answers, lock, turn = [], threading.Lock(), [0]
    until = time.time() + seconds if seconds else None

    def work():
        while True:
            with lock:
                k = turn[0]
                over = time.time() >= until if until else k >= len(requests)
                if over:
                    return
                turn[0] += 1
            request = requests[k % len(requests)]
            a = send_one(url, request, stream == "yes" or (stream == "mixed" and k % 3 != 0))
            with lock:
                answers.append(a)

    threads = [threading.Thread(target=work) for _ in range(min(at_once, len(requests)))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return answers


def flags_of(request):
    """The flags of `loom run` that ask for the same."""
    b = request["body"]
    flags = ["-n", str(b["max_tokens"]), "--temp", str(b["temperature"])]
    for name, flag in (("seed", "--seed"), ("top_p", "--top-p"), ("top_k", "--top-k"), ("min_p", "--min-p")):
        if name in b:
            flags += [flag, str(b[name])]
    return flags + (["--chat", b["messages"][0]["content"]] if "messages" in b else ["-p", b["prompt"]])


def run_one(loom, model, request, extra):
    a = {"i": request["i"]}
    p = subprocess.run([loom, "run", model, "--json", *flags_of(request), *extra], capture_output=True, text=True)
    if p.returncode:
        a["error"] = "exit code %d: %s" % (p.returncode, p.stderr[-2000:])
        return a
    out = json.loads(p.stdout)
    a.update(text=out["text"], finish=out["finish_reason"], prompt_tokens=out["prompt_tokens"],
             completion_tokens=out["completion_tokens"], token_ids=out["token_ids"])
    if len(out["token_ids"]) != out["completion_tokens"]:
        a["error"] = "%d token ids, but %d completion_tokens" % (len(out["token_ids"]), out["completion_tokens"])
    return finish_answer(a)


def read_lines(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def write_lines(path, objects):
    with open(path, "w") as f:
        for o in objects:
            f.write(json.dumps(o) + "\n")


def compare(want, got_paths):
    want = {a["i"]: a for a in want}
    wrong, count = 0, 0
    for path in got_paths:
        for a in read_lines(path):
            count += 1
            w = want[a["i"]]
            if "error" in a or "error" in w:
                print("  %s: request %d: %s" % (os.path.basename(path), a["i"], a.get("error") or w["error"]))
            elif a["hash"] != w["hash"]:
                print("  %s: request %d differs\n    want %s\n    got  %s" % (os.path.basename(path), a["i"], *[
                    json.dumps([x["text"], x["prompt_tokens"], x["completion_tokens"], x["finish"]], ensure_ascii=False)
                    for x in (w, a)]))
            elif "token_ids" in a and "token_ids" in w and a["token_ids"] != w["token_ids"]:
                print("  %s: request %d: other token ids for the same text" % (os.path.basename(path), a["i"]))
            else:
                continue
            wrong += 1
            if wrong == 10:
                print("  and so on")
                return 1
    if not count:
        print("  nothing to compare")
    return 1 if wrong or not count else 0


def gap_ms(times, kill):
    """(added gap, median before): the longest interval between pieces that ends after the kill and begins within a second
    of it, less the stream's median of the 2 s before. None: the stream was not under way."""
    before = sorted(b - a for a, b in zip(times, times[1:]) if kill - 2 <= a and b <= kill)
    after = [b - a for a, b in zip(times, times[1:]) if b >= kill and a <= kill + 1]
    if not before or not after:
        return None
    median = before[len(before) // 2]
    return 1e3 * (max(after) - median), 1e3 * median


def all_gaps(answers, kills):
    return [g for k in kills for a in answers for g in [gap_ms(a.get("times", []), k)] if g]


def gap_row(answers, kills):
    found = all_gaps(answers, kills)
    if found:
        gap, median = sorted(g for g, _ in found), sorted(m for _, m in found)
        print("%d,%.2f,%.1f,%.1f" % (len(found), median[len(found) // 2], gap[-1], gap[len(found) // 2]))


def gaps(answers, kills, status):
    found = [g for g, _ in all_gaps(answers, kills)]
    tokens = sum(a.get("completion_tokens", 0) for a in answers)
    print("%d answers, %d tokens, %d kills, %s; worst added gap %.0f ms over %d streams" % (
        len(answers), tokens, len(kills), status, max(found, default=0), len(found)))


def main():
    argv, extra = sys.argv[1:], []
    if "--" in argv:
        argv, extra = argv[:argv.index("--")], argv[argv.index("--") + 1:]
    p = argparse.ArgumentParser(description=__doc__)
    sub = p.add_subparsers(dest="verb", required=True)
    s = sub.add_parser("make")
    s.add_argument("--n", type=int, default=40)
    s.add_argument("--tokens", type=int, default=48)
    s.add_argument("--kind", default="mixed")
    s = sub.add_parser("send")
    s.add_argument("url")
    s.add_argument("requests")
    s.add_argument("--at-once", type=int, default=40)
    s.add_argument("--stream", default="mixed")
    s.add_argument("--seconds", type=float, default=0)
    s.add_argument("--out", required=True)
    s = sub.add_parser("run")
    s.add_argument("loom")
    s.add_argument("model")
    s.add_argument("requests")
    s.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    s.add_argument("--out", required=True)
    s = sub.add_parser("compare")
    s.add_argument("want")
    s.add_argument("got", nargs="+")
    s = sub.add_parser("gaps")
    s.add_argument("answers")
    s.add_argument("kills")
    s.add_argument("status")
    s = sub.add_parser("gap_row")
    s.add_argument("answers")
    s.add_argument("kills")
    a = p.parse_args(argv)
    if a.verb == "make":
        for r in make(a.n, a.tokens, a.kind):
            print(json.dumps(r, ensure_ascii=False))
        return 0
    if a.verb == "compare":
        return compare(read_lines(a.want), a.got)
    if a.verb == "gap_row":
        gap_row(read_lines(a.answers), read_lines(a.kills))
        return 0
    if a.verb == "gaps":
        gaps(read_lines(a.answers), read_lines(a.kills), a.status)
        return 0
    requests = read_lines(a.requests)
    if a.verb == "send":
        answers = send(a.url, requests, a.at_once, a.stream, a.seconds)
    else:
        with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
            answers = list(pool.map(lambda r: run_one(a.loom, a.model, r, extra), requests))
    answers.sort(key=lambda x: x["i"])
    write_lines(a.out, answers)
    failed = [x for x in answers if "error" in x]
    for x in failed[:5]:
        print("  request %d: %s" % (x["i"], x["error"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
