"""A head and its nodes as processes on the hosts of a lab: starting, losing and watching them."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time

import lab as labs

HTTP_PORT, CLUSTER_PORT, NODE_PORT = 8080, 7701, 7702


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def until(seconds, condition, every=0.05):
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


class Process:
    """A program on a host, with a state folder and a log that live through its restarts."""

    def __init__(self, cluster, name):
        self.cluster, self.name, self.host = cluster, name, cluster.lab.host[name]
        self.state = os.path.join(cluster.work, name + ".state")
        self.log = os.path.join(cluster.work, name + ".log")
        self.clock = os.path.join(cluster.work, name + ".clock")
        self.popen, self.started, self.gone_for_us = None, 0, True
        cluster.lab.disk(self.state, cluster.disk_mb)
        self.set_clock(0)

    def set_clock(self, seconds):
        with open(self.clock, "r+b" if os.path.exists(self.clock) else "wb") as f:
            f.write(struct.pack("<q", seconds))

    def start(self, *flags):
        env = dict(os.environ, LC_ALL="C.UTF-8")
        if self.cluster.clockshift:
            env.update(LD_PRELOAD=self.cluster.clockshift, CLOCKSHIFT=self.clock)
        command = self.host.inside([self.cluster.loom, *self.command(), *flags])
        with open(self.log, "a") as log:
            log.write("-- %s\n" % " ".join(command))
            log.flush()
            self.popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                          start_new_session=True)
        self.started, self.gone_for_us = time.monotonic(), False

    @property
    def pid(self):
        return self.popen.pid

    def alive(self):
        return self.popen is not None and self.popen.poll() is None

    def signal(self, number):
        if self.alive():
            self.popen.send_signal(number)

    def kill(self):
        """SIGKILL of the process that serves. Its guardian, if it has one, is left to do its work."""
        self.gone_for_us = True
        self.signal(signal.SIGKILL)

    def end(self, seconds=30):
        """SIGTERM; the exit code, or None if it does not end in time."""
        self.gone_for_us = True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def died(self):
        """Its exit code if it ended without having been told to, else None."""
        return None if self.gone_for_us or self.alive() else self.popen.returncode

    def forget(self):
        """What it left in memory: the processes of its session."""
        if self.popen:
            try:
                os.killpg(self.popen.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.popen.wait()

    def usage(self):
        """(open files, resident bytes), or None."""
        try:
            fds = len(os.listdir("/proc/%d/fd" % self.pid))
            with open("/proc/%d/statm" % self.pid) as f:
                return fds, int(f.read().split()[1]) * 4096
        except (OSError, IndexError):
            return None

    def tail(self, lines=12):
        with open(self.log, errors="replace") as f:
            return f.read().splitlines()[-lines:]

    def joined(self):
        """Whether the process that runs now is through its start. Each begins its part of the log with its command."""
        since = self.tail(60)
        for line in reversed(since):
            if " joined " in line:
                return True
            if line.startswith("-- "):
                return False
        return True


class Head(Process):
    def command(self):
        c = self.cluster
        return ["serve", c.model, "--listen", "%s:%d" % (self.host.address, c.http_port), "--cluster",
                "%s:%d" % (self.host.address, c.cluster_port), "--state", self.state, "--min-nodes", str(c.n_nodes),
                *c.head_flags]


SILENT_MS = 50


class Node(Process):
    def __init__(self, cluster, name):
        super().__init__(cluster, name)
        self.token = None

    def command(self):
        c = self.cluster
        return ["node", "--join", self.token or "%s:%d" % (c.head.host.address, c.cluster_port), "--name", self.name,
                "--state", self.state, "--listen", "%s:%d" % (self.host.address, NODE_PORT if c.netless is None else 0),
                "--threads", "1", *c.node_flags]


class Cluster:
    def __init__(self, lab, work, loom, model, n_nodes, head_flags=(), node_flags=(), netless=None):
        self.lab, self.work, self.loom, self.model, self.n_nodes = lab, work, loom, model, n_nodes
        self.head_flags, self.node_flags, self.netless = list(head_flags), list(node_flags), netless
        self.lag_ms = 20  # of a shadow, at most, to be one
        self.http_port = HTTP_PORT if netless is None else free_port()
        self.cluster_port = CLUSTER_PORT if netless is None else free_port()
        weights = sum(os.path.getsize(os.path.join(model, f)) for f in os.listdir(model))
        self.disk_mb = (weights >> 20) * 5 // 4 + 24
        self.clockshift = None
        if not self.sanitized():
            self.clockshift = labs.tool(work, loom, "clockshift.so", "-shared", "-fPIC", "-ldl")
        self.head = Head(self, "head")
        self.nodes = [Node(self, "n%d" % i) for i in range(n_nodes)]

    def sanitized(self):
        """Such a program wants to be the first that is loaded."""
        with open(self.loom, "rb") as f:
            return re.search(rb"__[at]san_init", f.read()) is not None

    def start(self):
        self.head.start()
        if not until(60, lambda: self.status() is not None):
            raise RuntimeError("the head does not listen:\n" + "\n".join(self.head.tail()))
        for n in self.nodes:
            n.token = subprocess.run([self.loom, "token", "create", "--address", "%s:%d" % (
                self.head.host.address, self.cluster_port), "--state", self.head.state], check=True,
                capture_output=True, text=True).stdout.strip()
            n.start()
            n.token = None # it is known from now on
        if not until(90, lambda: self.complete()):
            raise RuntimeError("the cluster does not become ready: %s" % self.why())

    def processes(self):
        return [self.head, *self.nodes]

    def forget(self):
        for p in self.processes():
            p.forget()

    def ask(self, path, body=None, timeout=5):
        """(status code, body) of the head's answer; None if it does not answer."""
        c = http.client.HTTPConnection(self.head.host.address, self.http_port, timeout=timeout)
        try:
            c.request("POST" if body else "GET", path, json.dumps(body) if body else None,
                      {"Content-Type": "application/json"} if body else {})
            r = c.getresponse()
            return r.status, r.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            c.close()

    def status(self):
        answer = self.ask("/loom/v1/status", timeout=2)
        try:
            return json.loads(answer[1]) if answer and answer[0] == 200 else None
        except ValueError:
            return None

    def node_of(self, status, number):
        """The process that the head knows under this number."""
        names = {n["node"]: n["name"] for n in status.get("nodes", [])}
        return next((n for n in self.nodes if n.name == names.get(number)), None)

    def holders(self, status):
        """For each stage its holders, the serving one first: (process, role)."""
        found = []
        for s in status.get("stages", []):
            those = s.get("holders") or [{"node": s["node"], "role": "serving"}]
            pairs = [(self.node_of(status, h["node"]), h["role"]) for h in those]
            found.append([p for p in pairs if p[0]])
        return found

    def complete(self, redundancy="none"):
        """Ready, every node is there, and every stage has a second holder of the kind asked for: none, spare, shadow."""
        s = self.status()
        if not s or not s.get("ready") or len(s.get("nodes", [])) < self.n_nodes:
            return False
        roles = [[role for _, role in h] for h in self.holders(s)]
        lags = [h.get("lag_ms", 0) for stage in s.get("stages", []) for h in stage.get("holders", [])]
        if any(lag > self.lag_ms for lag in lags):
            return False  # one that was just filled still catches up
        if any(h.get("suspect") for stage in s.get("stages", []) for h in stage.get("holders", [])):
            return False  # what it sends may still wait for TCP to try again
        if any(n.get("silent_ms", 0) > SILENT_MS for n in s["nodes"]):
            return False  # its cable is back, but TCP has not tried again yet
        return bool(roles) and all(
            "serving" in r and (redundancy == "none" or redundancy in r) and not {"loading", "feeding"} & set(r)
            for r in roles)

    def at_rest(self):
        """Nothing runs and nobody holds a block or a slot."""
        s = self.status()
        if not s:
            return False
        held = [s["running"], s["waiting"], s["kv_blocks_used"]]
        held += [n[k] for n in s["nodes"] for k in ("blocks_used", "slots_used")]
        return not any(held)

    def why(self):
        return json.dumps(self.status())

    def wipe_cache(self, node):
        """Its weights, not its identity."""
        for entry in os.listdir(node.state):
            path = os.path.join(node.state, entry)
            if os.path.isdir(path):
                shutil.rmtree(path)
