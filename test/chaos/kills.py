#!/usr/bin/env python3
"""What a client notices when a machine is lost: one holder after the other is killed, stopped or cut off while streams
run over three stages; the next one only when everything is redundant again.

kills.py [--kills 30] [--kind kill,stop,cut] [--context 512] [--redundancy shadow] [--model DIR] [--loopback]

The added gap of a stream is its longest interval between two pieces of text that overlaps the loss or begins within half
a second of it, less the stream's median interval of the 2 s before. A line per kind is printed, and added to --csv.
Every answer is compared. Exit code 1: an answer was wrong or lost, or redundancy did not come back.
"""
import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import cluster as clusters  # noqa: E402
import lab as labs
import reference
import traffic

TOP = os.path.dirname(os.path.dirname(labs.HERE))
WINDOW_S, SETTLED_S = 0.5, 1.2


class Bench:
    def __init__(self, args, lab, work):
        self.args, self.lab, self.work = args, lab, work
        flags = ["--context", str(args.context + args.tokens + 128), "--sequences", str(args.streams), *args.flags]
        self.flags, self.failures = flags, []
        head_flags = flags + (["--redundancy", args.redundancy] if args.redundancy != "old" else [])
        self.wanted = "none" if args.redundancy == "old" else args.redundancy
        self.cluster = clusters.Cluster(lab, work, args.loom, args.model, args.nodes, head_flags,
                                        ["--memory", args.memory], args.loopback or None)
        self.cluster.lag_ms = args.lag_ms
        self.rng = random.Random(args.seed)

    def make_requests(self, ask, model):
        """More than are used: a small model ends some of them early."""
        made, counted = [], traffic.counting(1, 8)
        for i in range(self.args.streams * 3):
            tale = " ".join(traffic.lib_load.SENTENCES[(i + k) % 3 * 2] for k in range(3))
            tale = " ".join([tale] * (2 + self.args.context // max(1, ask(tale))))
            while ask(tale + " " + counted) > self.args.context and " " in tale:
                tale = tale[:-max(20, len(tale) // 40)]
            body = {"model": model, "max_tokens": self.args.tokens, "prompt": tale + "\n\n" + counted, "temperature": 0}
            if i % 2:
                body.update(temperature=0.2, seed=100 + i, top_p=0.9, top_k=0, min_p=0)
            made.append({"i": i, "path": "/v1/completions", "body": body})
        return made

    def choose(self, requests):
        """Those whose answers are the longest."""
        by_length = sorted(requests, key=lambda r: -self.want[r["i"]]["completion_tokens"])
        self.requests = by_length[:self.args.streams]
        for r in self.requests:
            r["tokens"] = self.want[r["i"]]["completion_tokens"]
        print("answers of %d to %d tokens, prompts of %d to %d" % (
            self.requests[-1]["tokens"], self.requests[0]["tokens"],
            min(self.want[r["i"]]["prompt_tokens"] for r in self.requests),
            max(self.want[r["i"]]["prompt_tokens"] for r in self.requests)), flush=True)

    def settled(self, now):
        """Streams that have run long enough to be judged, and go on long enough."""
        good = []
        for f in list(self.traffic.flows):
            times = f.answer.times.get(0, [])
            if len(times) < 12 or times[0] > now - SETTLED_S:
                continue
            rest = f.request["tokens"] - len(times)
            if rest * (times[-1] - times[-12]) / 11 > WINDOW_S:
                good.append(f)
        return good

    def batch(self):
        self.done += self.traffic.finished if hasattr(self, "traffic") else []
        c = self.cluster
        self.traffic = traffic.Traffic((c.head.host.address, c.http_port), self.requests, self.args.streams, 1, "yes",
                                       cancels=False)
        self.traffic.start()
        clusters.until(30, lambda: self.traffic.turn >= self.args.streams, 0.002)
        self.traffic.stopping = True  # each once

    def wait_ready(self):
        """Until streams run and everything is redundant; the status then, or None."""
        end = time.monotonic() + self.args.patience
        while time.monotonic() < end:
            if not self.traffic.is_alive():
                # A route that lost a stage grows again only while nothing runs.
                clusters.until(20, lambda: len(self.cluster.holders(self.cluster.status() or {})) == self.args.nodes)
                self.batch()
            time.sleep(0.03)
            if len(self.settled(time.monotonic())) < self.args.streams * 3 // 4:
                continue
            status = self.cluster.status()
            if (status and len(self.cluster.holders(status)) == self.args.nodes and self.cluster.complete(self.wanted) and
                    len(self.settled(time.monotonic())) >= self.args.streams // 2):
                return status
        return None

    def strike(self, kind, node):
        """Returns (when, the end of it)."""
        at = time.monotonic()
        if kind == "kill":
            node.kill()
            return at, lambda: (node.popen.wait(), node.start())
        if kind == "stop":
            node.signal(signal.SIGSTOP)
            return at, lambda: node.signal(signal.SIGCONT)
        node.host.pull(True)
        return at, lambda: node.host.pull(False)

    def series(self, kind):
        rows = []
        for k in range(self.args.kills):
            status = self.wait_ready()
            if self.args.verbose and rows:
                self.tell(kind, *rows[-1])
            if not status:
                self.failures.append("%s %d: not redundant again after %d s: %s" % (
                    kind, k, self.args.patience, self.cluster.why()))
                break
            stages = self.cluster.holders(status)
            stage = k % len(stages)
            at, heal = self.strike(kind, stages[stage][0][0])
            time.sleep(self.args.hold)
            heal()
            rows.append((at, stage))
            time.sleep(self.rng.uniform(0, 0.2))
        return rows

    def tell(self, kind, at, stage):
        flows = self.done + self.traffic.finished + list(self.traffic.flows)
        gaps = traffic.added_gaps(flows, at, WINDOW_S)
        when = time.strftime("%H:%M:%S", time.gmtime(time.time() - (time.monotonic() - at)))
        print("%s %s of stage %d: worst added gap %.1f ms of %d streams, from %.1f to %.1f ms after it" % (
            when, kind, stage, max((g for g, _ in gaps), default=float("nan")), len(gaps),
            *traffic.worst_interval(flows, at, WINDOW_S)), flush=True)

    def finish(self):
        self.traffic.join(traffic.PATIENCE_S + 30)
        self.done += self.traffic.finished + list(self.traffic.flows)
        wrong, lost = traffic.verdicts(self.done, self.want)
        self.failures += ["wrong: " + w for w in wrong[:10]] + ["lost: " + w for w in lost[:10]]
        print("%d answers of %d tokens: %d wrong, %d lost" % (
            len(self.done), sum(f.answer.usage["completion_tokens"] for f in self.done if f.answer.usage),
            len(wrong), len(lost)))

    def report(self, kind, rows):
        found = [g for at, _ in rows for g in traffic.added_gaps(self.done, at, WINDOW_S)]
        gaps, steps = [g for g, _ in found], [m for _, m in found]
        a = self.args
        p50, p99 = traffic.percentile(gaps, 0.5), traffic.percentile(gaps, 0.99)
        step, worst = traffic.percentile(steps, 0.5), max(gaps, default=float("nan"))
        print("%-5s context %d, %s: %d times, %d streams, step %.2f ms, added gap p50 %.1f, p99 %.1f, worst %.1f ms" % (
            kind, a.context, a.redundancy, len(rows), len(gaps), step, p50, p99, worst), flush=True)
        if a.csv:
            new = not os.path.exists(a.csv)
            with open(a.csv, "a") as f:
                if new:
                    f.write("date,model,kind,redundancy,context,nodes,streams,losses,step_ms,gap_p50_ms,gap_p99_ms,"
                            "gap_worst_ms\n")
                f.write("%s,%s,%s,%s,%d,%d,%d,%d,%.2f,%.1f,%.1f,%.1f\n" % (
                    time.strftime("%F"), os.path.basename(a.model), kind, a.redundancy, a.context, a.nodes, a.streams,
                    len(rows), step, p50, p99, worst))

    def counters(self):
        s = self.cluster.status() or {}
        return ", ".join("%s %s" % (k, s[k]) for k in ("epoch", "nodes_lost", "promotions", "suspicions", "false_alarms",
                                                       "waited") if k in s)

    def run(self):
        self.done = []
        requests, self.want = reference.make(self.args.loom, self.args.model, self.work, self.lab.host["head"],
                                                  self.flags, self.make_requests)
        self.choose(requests)
        self.cluster.start()
        self.batch()
        rows = {}
        for kind in self.args.kind:
            rows[kind] = self.series(kind)
            print("%s: %s" % (kind, self.counters()))
        self.finish()
        for kind in rows:
            self.report(kind, rows[kind])
        if not clusters.until(30, self.cluster.at_rest):
            self.failures.append("blocks or slots are left: " + self.cluster.why())
        for p in self.cluster.processes():
            if p.died() is not None:
                self.failures.append("%s ended by itself: %s" % (p.name, " | ".join(p.tail(3))))


def run(args):
    work = tempfile.mkdtemp(prefix="loom-kills-")
    names = ["head"] + ["n%d" % i for i in range(args.nodes)]
    lab = bench = None
    try:
        lab = labs.Loopback(names) if args.loopback else labs.Lab(work, args.loom, names, args.mbit, args.delay_us)
        bench = Bench(args, lab, work)
        bench.run()
        for f in bench.failures:
            print("FAILED: " + f)
        if bench.failures:
            for p in bench.cluster.processes():
                print("the end of %s's log:\n%s" % (p.name, "\n".join("  " + line for line in p.tail(15))))
        return 1 if bench.failures else 0
    finally:
        if bench:
            bench.cluster.forget()
        if os.environ.get("KEEP"):
            os.makedirs(os.environ["KEEP"], exist_ok=True)
            for name in os.listdir(work):
                if ".log" in name:
                    shutil.copy(os.path.join(work, name), os.environ["KEEP"])
        if lab:
            lab.close()
        shutil.rmtree(work, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kills", type=int, default=30, help="of each kind")
    p.add_argument("--kind", type=lambda s: s.split(","), default=["kill"], help="kill, stop, cut")
    p.add_argument("--context", type=int, default=512, help="tokens of each prompt")
    p.add_argument("--tokens", type=int, default=1200, help="of each answer, at most")
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--nodes", type=int, default=3)
    p.add_argument("--redundancy", default="shadow", choices=["shadow", "spare", "none", "must", "old"],
                   help="old: the program has no such flag")
    p.add_argument("--model", default=os.path.join(TOP, "models", "loom-demo"))
    p.add_argument("--memory", default="1G", help="of each node")
    p.add_argument("--lag-ms", type=float, default=20, help="of every shadow, at most, before the next loss")
    p.add_argument("--flags", type=str.split, default=[], help="more flags of serve, such as '--weights q4_0'")
    p.add_argument("--hold", type=float, default=1.0, help="seconds until the node is back")
    p.add_argument("--patience", type=float, default=90, help="seconds until all has to be redundant again")
    p.add_argument("--mbit", type=int, default=1000)
    p.add_argument("--delay-us", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--csv", help="a file to which a line is added")
    p.add_argument("--loopback", action="store_true", help="no namespaces: kill and stop only")
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    args.loom = os.path.abspath(os.environ.get("LOOM", os.path.join(TOP, "build", "loom")))
    args.model = os.path.abspath(args.model)
    args.csv = args.csv and os.path.abspath(args.csv)
    if set(args.kind) - {"kill", "stop", "cut"} or (args.loopback and "cut" in args.kind):
        p.error("--kind is kill, stop or cut; no cut with --loopback")
    if not os.access(args.loom, os.X_OK):
        print("skipped: needs the program %s (make)" % args.loom)
        return 77
    if args.loopback:
        labs.catch_signals()
        return run(args)
    try:
        return labs.contain(lambda: run(args))
    except labs.Missing as e:
        print("skipped: needs %s; --loopback does without, but for cuts" % e)
        return 77


if __name__ == "__main__":
    sys.exit(main())
