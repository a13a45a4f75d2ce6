"""What the answers have to be: from an undisturbed server of one process, some of them checked against `loom run`."""
import concurrent.futures
import json
import os
import subprocess

import cluster as clusters
import traffic
from traffic import lib_load


def by_run(loom, model, request, flags):
    b = request["body"]
    command = [loom, "run", model, "--json", *lib_load.flags_of(request), *flags]
    for s in b.get("stop", []):
        command += ["--stop", s]
    out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {"text": [out["text"]], "finish": [out["finish_reason"]], "prompt_tokens": out["prompt_tokens"],
            "completion_tokens": out["completion_tokens"]}


def make(loom, model, work, host, flags, build):
    """(requests, answers by number). build(ask, id) makes the requests; flags: those of serve that change answers."""
    port = clusters.free_port()
    log = open(os.path.join(work, "calm.log"), "w")
    calm = subprocess.Popen(host.inside([loom, "serve", model, "--listen", "%s:%d" % (host.address, port), "--state",
                                         os.path.join(work, "calm.state"), *flags]), stdout=log, stderr=log,
                            start_new_session=True)
    try:
        def healthy():
            c = clusters.http.client.HTTPConnection(host.address, port, timeout=2)
            try:
                c.request("GET", "/health")
                return c.getresponse().status == 200
            except OSError:
                return False
            finally:
                c.close()

        if not clusters.until(120, healthy):
            raise RuntimeError("the undisturbed server does not become ready (%s)" % log.name)
        c = clusters.http.client.HTTPConnection(host.address, port, timeout=10)
        c.request("GET", "/v1/models")
        name = json.loads(c.getresponse().read())["data"][0]["id"]
        c.close()

        def ask(text):
            return traffic.post(host.address, port, {"path": "/v1/completions", "body": {
                "model": name, "prompt": text, "max_tokens": 1}}).usage["prompt_tokens"]

        requests = build(ask, name)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda r: traffic.post(host.address, port, r).whole(), requests))
    finally:
        calm.terminate()
        calm.wait()
        log.close()
    want = {r["i"]: a for r, a in zip(requests, answers)}
    for r in [r for r in requests if "n" not in r["body"] and len(str(r["body"])) < 2000][:4]:
        if by_run(loom, model, r, flags) != want[r["i"]]:
            raise RuntimeError("request %d: `loom run` and the undisturbed server differ" % r["i"])
    return requests, want
