#!/usr/bin/env python3
"""Requests run on a cluster of several hosts while machines, links, disks and clocks fail by a seeded schedule; every
answer has to be what it is without.

chaos.py [--secs 60] [--seed 1] [--nodes 4] [--kinds kill,cut,...] [--loopback] [--list]

The hosts are network namespaces on a bridge; all is gone afterwards. Where they cannot be had it says why and exits with
77; --loopback then runs all that needs no network of its own. $LOOM is the program (build/loom). Exit code 1: an answer
was wrong or lost, a process died by itself, or something is left over; then the seed, what was done and the ends of the
logs are printed.
"""
import argparse
import collections
import heapq
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True
import cluster as clusters  # noqa: E402
import faults
import lab as labs
import reference
import traffic

TOP = os.path.dirname(os.path.dirname(labs.HERE))
Event = collections.namedtuple("Event", "at kind what window")


def schedule(seed, secs, kinds):
    """[(seconds from the start, kind)]: a deck with each kind as often as its weight, dealt again and again."""
    rng = random.Random(seed)
    deck, at, plan = [], rng.uniform(1, 2), []
    while at < secs - 1:
        if not deck:
            deck = [k for k in kinds for _ in range(faults.ALL[k][1])]
            rng.shuffle(deck)
        plan.append((at, deck.pop()))
        at += rng.uniform(0.3, 3.5)
    return plan


def bytes_of(size):
    """Of a --memory such as 400M or 8G."""
    return int(size[:-1]) << {"M": 20, "G": 30}[size[-1]]


class Run:
    def __init__(self, args, lab, work, netless):
        self.args, self.work = args, work
        head_flags = ["--context", str(max(args.contexts) + args.tokens + 512), "--sequences", "8", *args.head_flags]
        self.byte_flags = head_flags[:2] + args.head_flags_of_bytes
        self.cluster = clusters.Cluster(lab, work, args.loom, args.model, args.nodes,
                                        head_flags + args.head_flags_of_bytes, ["--memory", args.memory], netless)
        self.timers, self.n_timers = [], 0
        self.busy, self.head_away = set(), False
        self.events, self.failures, self.usage = [], [], collections.defaultdict(list)
        self.baseline, self.others = {}, []
        self.next_look, self.other = 0, None
        self.redundancy = "none"  # what there is at the start has to be there at the end

    def fail(self, text):
        self.failures.append("%.1f s: %s" % (time.monotonic() - self.began, text))

    def later(self, seconds, do):
        self.n_timers += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.n_timers, do))

    def pump(self, condition, seconds):
        """Does what is due until the condition holds; whether it came to that in time."""
        end, next_try = time.monotonic() + seconds, 0
        while True:
            now = time.monotonic()
            while self.timers and self.timers[0][0] <= now:
                heapq.heappop(self.timers)[2]()
            if now >= self.next_look:
                self.look()
                self.next_look = now + 0.5
            if now >= next_try:
                if condition():
                    return True
                next_try = now + 0.05
            if now > end:
                return False
            time.sleep(max(0, min(0.01, self.timers[0][0] - now if self.timers else 0.01)))

    def look(self):
        """Who died, and what the living use."""
        if self.traffic.failure:
            raise RuntimeError("the thread that sends is gone: %r" % self.traffic.failure)
        for p in self.cluster.processes():
            code = p.died()
            if code is not None:
                self.fail("%s ended by itself, exit code %d: %s" % (p.name, code, " | ".join(p.tail(2))))
                self.busy.discard(p)
                p.start()
            used = p.usage()
            if used:
                self.usage[p, p.pid].append((time.monotonic(), *used))

    def spawn(self, host, log, command):
        """A program that is no part of the cluster."""
        with open(log, "a") as out:
            p = subprocess.Popen(host.inside(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                 start_new_session=True)
        self.others.append(p)
        return p

    def forget(self):
        self.cluster.forget()
        for p in self.others:
            if p.poll() is None:
                p.kill()

    def free(self):
        return [n for n in self.cluster.nodes if n not in self.busy and n.alive()]

    def pick(self, rng, n=1):
        """Nodes that nothing happens to now. At least one is left alone."""
        free = self.free()
        if len(free) <= n or self.head_away:
            raise faults.NotNow()
        those = rng.sample(free, n)
        return those[0] if n == 1 else those

    def head_lost(self):
        if self.head_away:
            raise faults.NotNow()
        self.head_away = True

    def head_is_back(self):
        self.head_away = False

    def bring_back(self, process, *flags):
        process.popen.wait()
        process.start(*flags)
        self.busy.discard(process)
        if process is self.cluster.head:
            self.head_is_back()

    def other_model(self):
        """A folder with the model's names and shapes, and other numbers."""
        if not self.other:
            self.other = os.path.join(self.work, "other-model")
            shutil.copytree(self.args.model, self.other)
            for name in os.listdir(self.other):
                if name.endswith(".safetensors"):
                    with open(os.path.join(self.other, name), "r+b") as f:
                        start = 8 + int.from_bytes(f.read(8), "little")
                        f.seek(start)
                        data = bytes(b ^ 1 for b in f.read(1 << 20))
                        f.seek(start)
                        f.write(data)
        return self.other

    def strike(self, k, kind):
        rng = random.Random("%d/%d" % (self.args.seed, k))
        began = time.monotonic()
        for _ in range(60):
            if self.head_away:
                self.pump(lambda: not self.head_away, 20)
            try:
                at = time.monotonic()
                what, lasts = faults.ALL[kind][0](self, rng)
                break
            except faults.NotNow:
                self.pump(lambda: False, 0.5)
        else:
            at, what, lasts = began, "left out: too few machines are well", 0
        self.events.append(Event(at, kind, what, max(1.0, lasts + 0.5)))
        if self.args.verbose:
            print("%7.2f s  %-18s %s" % (at - self.began, kind, what), flush=True)

    def execute(self, plan):
        self.cluster.start()
        if clusters.until(10 if self.args.need_shadows else 3, lambda: self.cluster.complete("shadow")):
            self.redundancy = "shadow"
        clusters.until(20, self.rested)
        if self.args.need_shadows and self.redundancy != "shadow":
            raise RuntimeError("the stages have no shadows: %s" % self.cluster.why())
        self.baseline = {p.name: p.usage() for p in self.cluster.processes()}
        self.began = time.monotonic()
        self.traffic.start()
        for k, (at, kind) in enumerate(plan):
            self.pump(lambda: time.monotonic() - self.began >= at, 3600)
            self.strike(k, kind)
        self.pump(lambda: time.monotonic() - self.began >= self.args.secs, 3600)
        self.settle()

    def rested(self):
        return self.cluster.complete(self.redundancy) and self.cluster.at_rest()

    def settle(self):
        """Everything heals; then all answers have to come, and nothing may be left."""
        self.pump(lambda: not self.timers, 40)
        self.traffic.stopping = True
        if not self.pump(lambda: not self.traffic.is_alive(), traffic.PATIENCE_S + 30):
            self.fail("%d requests do not end" % len(self.traffic.flows))
        if not self.pump(lambda: self.cluster.complete(self.redundancy), 60):
            self.fail("the cluster is not whole again: %s" % self.cluster.why())
        if not self.pump(self.cluster.at_rest, 30):
            self.fail("blocks, slots or requests are left: %s" % self.cluster.why())
        status = self.cluster.status() or {}
        waited = sum(n.get("waited", 0) for n in status.get("nodes", []))
        if waited:
            self.fail("stages that serve waited %d times for a shadow" % waited)
        self.compare_usage()

    def compare_usage(self):
        time.sleep(0.5)
        with open(os.path.join(self.work, "usage.log.csv"), "w") as f:
            f.write("seconds,name,process,descriptors,memory_kb\n")
            for (p, pid), rows in self.usage.items():
                for at, fds, rss in rows:
                    f.write("%.1f,%s,%d,%d,%d\n" % (at - self.began, p.name, pid, fds, rss >> 10))
        most = max(fds for name, (fds, _) in self.baseline.items() if name != "head")
        for p in self.cluster.processes():
            used = p.usage()
            if not used:
                continue
            fds, rss = used
            was_fds, was_rss = self.baseline[p.name]
            was_fds = max(was_fds, most) if p.name != "head" else was_fds
            if fds > was_fds + 8:
                self.fail("%s holds %d descriptors at rest, %d at the start" % (p.name, fds, was_fds))
            # A node keeps layers that it may need again, as long as it may use the memory: that is no leak.
            bound = was_rss * 3 // 2 + (64 << 20) if p.name == "head" else bytes_of(self.args.memory) + (64 << 20)
            if rss > bound:
                self.fail("%s uses %d MB at rest, %d MB at the start" % (p.name, rss >> 20, was_rss >> 20))
        self.check_flat()

    def check_flat(self):
        """The memory of a head that lived long: its second quarter against its last one."""
        for (p, pid), rows in self.usage.items():
            if len(rows) < 240 or p is not self.cluster.head:
                continue
            quarter = len(rows) // 4
            early, late = (sorted(r[2] for r in rows[k * quarter:(k + 1) * quarter])[quarter // 2] for k in (1, 3))
            if late > early * 1.15 + (24 << 20):
                self.fail("%s (process %d) grew from %d to %d MB" % (p.name, pid, early >> 20, late >> 20))

    def report(self):
        flows = self.traffic.finished + list(self.traffic.flows)
        wrong, lost = traffic.verdicts(flows, self.want)
        streams = [f for f in flows if f.stream]
        print("%-20s %5s %8s   added gap, ms: %8s %8s %8s" % ("what", "times", "streams", "median", "p99", "worst"))
        for kind in faults.ALL:
            those = [e for e in self.events if e.kind == kind]
            gaps = [g for e in those for g, _ in traffic.added_gaps(streams, e.at, e.window)]
            if those:
                print("%-20s %5d %8d                  %8.1f %8.1f %8.1f" % (
                    kind, len(those), len(gaps), traffic.percentile(gaps, 0.5), traffic.percentile(gaps, 0.99),
                    max(gaps, default=float("nan"))))
        s = self.cluster.status() or {}
        print("second holders: %s" % self.redundancy)
        counters = ["epoch"] + [k for k in ("route_changes", "nodes_lost", "preemptions", "promotions", "suspicions",
                                            "false_alarms", "drained", "adopted") if k in s]
        resumes = [ms for f in flows for ms in f.resume_ms]
        print("the last head: " + ", ".join("%s %s" % (k, s.get(k)) for k in counters))
        for p in self.cluster.processes():
            was, used = self.baseline.get(p.name), p.usage()
            if was and used:
                print("%s: descriptors %d -> %d, memory %d -> %d MB" % (
                    p.name, was[0], used[0], was[1] >> 20, used[1] >> 20))
        if resumes:
            print("broken streams went on after %.0f ms (median), %.0f ms (worst)" % (
                traffic.percentile(resumes, 0.5), max(resumes)))
        print("%d answers (%d streams, %d resumed, %d sent anew, %d cancelled by the client): %d wrong, %d lost" % (
            len(flows), len(streams), sum(f.resumed for f in flows), sum(f.resent for f in flows),
            sum(f.cancelled for f in flows), len(wrong), len(lost)))
        if len(flows) < 5:
            self.fail("only %d answers" % len(flows))
        self.failures += ["wrong: " + w for w in wrong[:10]] + ["lost: " + w for w in lost[:10]]

    def explain(self):
        print("FAILED: seed %d" % self.args.seed)
        for f in self.failures[:40]:
            print("  " + f)
        print("what was done:")
        for e in self.events:
            print("  %7.2f s  %-18s %s" % (e.at - self.began, e.kind, e.what))
        for p in self.cluster.processes():
            print("the end of %s's log:" % p.name)
            print("\n".join("  " + line for line in p.tail(15)))
        print("again: LOOM=%s test/chaos/chaos.py --seed %d --secs %g --nodes %d" % (
            self.args.loom, self.args.seed, self.args.secs, self.args.nodes), flush=True)


def run(args, netless=None):
    work = tempfile.mkdtemp(prefix="loom-chaos-")
    names = ["head"] + ["n%d" % i for i in range(args.nodes)]
    r = lab = None
    try:
        lab = labs.Loopback(names) if netless else labs.Lab(work, args.loom, names, args.mbit, args.delay_us)
        kinds = args.kinds or [k for k, (_, _, net) in faults.ALL.items() if not (net and netless)]
        plan = schedule(args.seed, args.secs, kinds)
        r = Run(args, lab, work, netless)
        requests, r.want = reference.make(
            args.loom, args.model, work, lab.host["head"], r.byte_flags,
            lambda ask, model: traffic.make(7, args.requests, args.tokens, args.contexts, ask, model))
        r.began = time.monotonic()
        c = r.cluster
        r.traffic = traffic.Traffic((c.head.host.address, c.http_port), requests, args.at_once, args.seed)
        try:
            r.execute(plan)
        except (RuntimeError, OSError, labs.Missing):
            r.fail("the harness stopped: " + traceback.format_exc())
        r.report()
        if r.failures:
            r.explain()
        print("chaos: seed %d, %g s, %d events: %s" % (args.seed, args.secs, len(r.events),
                                                       "FAILED" if r.failures else "passed"))
        return 1 if r.failures else 0
    finally:
        if r:
            r.forget()
        if os.environ.get("KEEP"):
            keep = os.environ["KEEP"]
            os.makedirs(keep, exist_ok=True)
            for name in os.listdir(work):
                if ".log" in name:
                    shutil.copy(os.path.join(work, name), keep)
        if lab:
            lab.close()
        shutil.rmtree(work, ignore_errors=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--secs", type=float, default=60)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--nodes", type=int, default=4)
    p.add_argument("--at-once", type=int, default=8, help="requests under way")
    p.add_argument("--requests", type=int, default=30, help="different ones")
    p.add_argument("--tokens", type=int, default=160, help="of an answer, at most")
    p.add_argument("--contexts", type=lambda s: [int(x) for x in s.split(",")], default=[0, 0, 0, 512, 0, 2048],
                   help="tokens of the prompts, in turn; 0: a short one")
    p.add_argument("--mbit", type=int, default=1000, help="of each link; 0: no bound")
    p.add_argument("--delay-us", type=int, default=0, help="of each link, one way: by a cable in user space")
    p.add_argument("--memory", default="400M", help="of each node")
    p.add_argument("--model", default=os.path.join(TOP, "models", "loom-demo"))
    p.add_argument("--kinds", type=lambda s: s.split(","), help="only these")
    p.add_argument("--head-flags", type=str.split, default=[], help="more flags of serve")
    p.add_argument("--head-flags-of-bytes", type=str.split, default=[], help="those that change answers")
    p.add_argument("--need-shadows", action="store_true", help="fail if the stages have none at the start")
    p.add_argument("--loopback", action="store_true", help="no namespaces")
    p.add_argument("--list", action="store_true", help="show the schedule only")
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    a.loom = os.path.abspath(os.environ.get("LOOM", os.path.join(TOP, "build", "loom")))
    a.model = os.path.abspath(a.model)
    unknown = set(a.kinds or []) - set(faults.ALL)
    if unknown:
        p.error("unknown: %s; there are: %s" % (", ".join(unknown), ", ".join(faults.ALL)))
    return a


def main():
    args = arguments()
    if args.list:
        for at, kind in schedule(args.seed, args.secs, args.kinds or list(faults.ALL)):
            print("%7.2f s  %s" % (at, kind))
        return 0
    if not os.access(args.loom, os.X_OK):
        print("skipped: needs the program %s (make)" % args.loom)
        return 77
    if args.loopback:
        labs.catch_signals()
        return run(args, netless=True)
    try:
        return labs.contain(lambda: run(args))
    except labs.Missing as e:
        print("skipped: needs %s; --loopback runs what needs no network of its own" % e)
        return 77


if __name__ == "__main__":
    sys.exit(main())
