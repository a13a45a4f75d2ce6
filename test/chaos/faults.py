"""What can be done to a cluster, each as one function of a Run (chaos.py). They act at once, arrange the recovery with
run.later(), and return (what was done, how many seconds the disturbance lasts by itself)."""
import os
import random
import shutil
import signal
import threading
import time


class NotNow(Exception):
    """Too many machines are away for what is to be done."""


def lose(run, node, rng, after=0.0):
    """SIGKILL, and a new start some time later."""
    run.busy.add(node)

    def kill():
        node.kill()
        run.later(rng.uniform(0.2, 3), lambda: run.bring_back(node))

    if after:
        run.later(after, kill)
    else:
        kill()
    return node.name


def kill(run, rng):
    return lose(run, run.pick(rng), rng), 0


def stop(run, rng, least, most):
    node, seconds = run.pick(rng), rng.uniform(least, most)
    run.busy.add(node)
    node.signal(signal.SIGSTOP)

    def go_on():
        node.signal(signal.SIGCONT)
        run.busy.discard(node)

    run.later(seconds, go_on)
    return "%s for %.2f s" % (node.name, seconds), seconds


def stop_short(run, rng):
    return stop(run, rng, 0.03, 0.4)


def stop_long(run, rng):
    return stop(run, rng, 4, 8)


def link_fault(run, rng, apply, least, most, text):
    """Something with the link of a node, until it is healed."""
    node, seconds = run.pick(rng), rng.uniform(least, most)
    run.busy.add(node)
    apply(node.host)

    def heal():
        node.host.heal()
        run.busy.discard(node)

    run.later(seconds, heal)
    return "%s %sfor %.2f s" % (node.name, text, seconds), seconds


def cut(run, rng):
    return link_fault(run, rng, lambda h: h.cut("both"), 0.05, 6, "")


def cut_out(run, rng):
    return link_fault(run, rng, lambda h: h.cut("out"), 0.05, 6, "")


def cut_in(run, rng):
    return link_fault(run, rng, lambda h: h.cut("in"), 0.05, 6, "")


def pull(run, rng):
    return link_fault(run, rng, lambda h: h.pull(True), 0.05, 6, "")


def loss(run, rng):
    permille = rng.randrange(10, 150)
    return link_fault(run, rng, lambda h: h.loss(permille), 1, 4, "%d permille " % permille)


def slow_link(run, rng):
    mbit = rng.randrange(1, 6)
    return link_fault(run, rng, lambda h: h.rate(mbit), 1, 4, "%d Mbit/s " % mbit)


def part(run, rng):
    """Two nodes do not reach each other, while the head reaches both."""
    a, b = run.pick(rng, 2)
    seconds = rng.uniform(0.3, 5)
    run.busy.update((a, b))
    a.host.part_from(b.host)

    def heal():
        a.host.heal()
        run.busy.difference_update((a, b))

    run.later(seconds, heal)
    return "%s and %s for %.2f s" % (a.name, b.name, seconds), seconds


def slow_node(run, rng):
    """Runs for 5 ms of each 20 to 50."""
    node, seconds, pause = run.pick(rng), rng.uniform(1, 4), rng.uniform(0.015, 0.045)
    run.busy.add(node)
    end = time.monotonic() + seconds

    def slow():
        while time.monotonic() < end and node.alive():
            node.signal(signal.SIGSTOP)
            time.sleep(pause)
            node.signal(signal.SIGCONT)
            time.sleep(0.005)
        run.busy.discard(node)

    threading.Thread(target=slow, daemon=True).start()
    return "%s for %.1f s, %.0f ms of each %.0f stand still" % (
        node.name, seconds, pause * 1e3, pause * 1e3 + 5), seconds


def clock(run, rng):
    """The wall clock of one machine jumps, and back again later."""
    process, shift = rng.choice(run.cluster.processes()), rng.choice([-1, 1]) * rng.randrange(1, 12 * 3600)
    process.set_clock(shift)
    run.later(rng.uniform(2, 8), lambda: process.set_clock(0))
    return "%s by %d s" % (process.name, shift), 0


def fill(folder):
    """Takes all room that there is; the file that has it."""
    path = os.path.join(folder, "fill-%d" % time.monotonic_ns())
    with open(path, "wb", buffering=0) as f:
        for size in (1 << 20, 4096):
            try:
                while True:
                    f.write(bytes(size))
            except OSError:
                pass
    return path


def disk_full(run, rng):
    """A node that lost its weights comes back to a full disk."""
    node, seconds = run.pick(rng), rng.uniform(3, 6)
    run.busy.add(node)
    node.kill()
    node.popen.wait()
    run.cluster.wipe_cache(node)
    path = fill(node.state)
    run.later(0.3, node.start)

    def empty():
        os.unlink(path)
        run.busy.discard(node)

    run.later(seconds, empty)
    return "%s for %.1f s" % (node.name, seconds), 0


def head_disk_full(run, rng):
    seconds = rng.uniform(1, 4)
    path = fill(run.cluster.head.state)
    run.later(seconds, lambda: os.unlink(path))
    return "for %.1f s" % seconds, seconds


def twin(run, rng):
    """A second process with the same state folder: it has to end by itself."""
    node = run.pick(rng)
    if not node.joined():
        raise NotNow()  # it could be the second one itself
    p = run.spawn(node.host, node.log + ".twin", [run.cluster.loom, *node.command(), "--once"])

    def look():
        if p.poll() is None:
            run.fail("a second process with the state folder of %s runs on" % node.name)
            p.kill()
        p.wait()

    run.later(10, look)
    return node.name, 0


def twin_copy(run, rng):
    """A process with a copy of the state folder, on the same host: only one of the two may be in the cluster."""
    node = run.pick(rng)
    copy = os.path.join(run.cluster.work, "copy-%d" % len(run.events))
    os.makedirs(copy)
    for name in os.listdir(node.state):
        path = os.path.join(node.state, name)
        if os.path.isfile(path) and not name.startswith("fill-"):
            shutil.copy(path, copy)
    command = node.command()
    command[command.index("--state") + 1] = copy
    command[command.index("--listen") + 1] = node.host.address + ":0"
    p = run.spawn(node.host, node.log + ".twin", [run.cluster.loom, *command])

    def end():
        p.kill()
        p.wait()
        shutil.rmtree(copy)

    run.later(rng.uniform(1, 4), end)
    return node.name, 0


def head_kill(run, rng):
    head, seconds = run.cluster.head, rng.uniform(0.1, 1.0)
    run.head_lost()
    head.kill()
    run.later(seconds, lambda: run.bring_back(head))
    return "back after %.1f s" % seconds, seconds + 1


def head_stop(run, rng):
    """As when the lid of a laptop is closed for a moment."""
    head, seconds = run.cluster.head, rng.choice([rng.uniform(0.05, 1), rng.uniform(2, 7)])
    run.head_lost()
    head.signal(signal.SIGSTOP)

    def go_on():
        head.signal(signal.SIGCONT)
        run.head_is_back()

    run.later(seconds, go_on)
    return "for %.2f s" % seconds, seconds


def stale_flags(run, rng):
    """The head comes back with other settings, which change no byte of an answer."""
    head, chunk = run.cluster.head, rng.choice([64, 128, 200])
    run.head_lost()
    head.kill()
    run.later(0.3, lambda: run.bring_back(head, "--chunk", str(chunk), "--sequences", str(rng.randrange(6, 12))))
    return "--chunk %d" % chunk, 1.3


def stale_model(run, _rng):
    """The head comes back with other weights, and again with its own, while the nodes still hold the old ones. Nothing
    is under way meanwhile: the answers would be others."""
    run.traffic.paused = True
    if not run.pump(lambda: not run.traffic.flows, 150):
        run.fail("requests do not end while no new ones come")
    head = run.cluster.head
    run.head_lost()
    for flags in (["--weights", "q4_0"], []):
        head.end()
        head.start(*flags)
        if not run.pump(lambda: run.cluster.status() and run.cluster.complete(), 90):
            run.fail("not ready after the head came back with %s: %s" % (flags or "its own weights", run.cluster.why()))
    run.head_is_back()
    run.traffic.paused = False
    return "to q4_0 and back", 0


def stale_node(run, rng):
    """A node comes back with a model folder whose weights are others, under the same names."""
    node = run.pick(rng)
    run.busy.add(node)
    node.kill()
    node.popen.wait()
    run.cluster.wipe_cache(node)
    run.later(0.5, lambda: run.bring_back(node, "--model", run.other_model()))
    return node.name, 0


def two_losses(run, rng):
    a, b = run.pick(rng, 2)
    return "%s and %s" % (lose(run, a, rng), lose(run, b, rng)), 0


def loss_in_recovery(run, rng):
    a, b = run.pick(rng, 2)
    after = rng.uniform(0.005, 0.2)
    return "%s, and %s %.0f ms later" % (lose(run, a, rng), lose(run, b, rng, after), after * 1e3), 0


def primary_and_shadow(run, rng):
    free = run.free()
    pairs = [h[:2] for h in run.cluster.holders(run.cluster.status() or {}) if len(h) > 1]
    pairs = [[p[0] for p in pair] for pair in pairs if pair[0][0] in free and pair[1][0] in free]
    both = rng.choice(pairs) if pairs else run.pick(rng, 2)
    return "%s and %s%s" % (*[lose(run, n, rng) for n in both], "" if pairs else " (no shadows)"), 0


def drain(run, rng):
    node = run.pick(rng)
    if not node.joined():
        raise NotNow()  # it may not even have said yet what it does with the signal
    run.busy.add(node)
    began = time.monotonic()
    node.gone_for_us = True
    node.signal(signal.SIGTERM)

    def look():
        if node.alive() and time.monotonic() - began < 30:
            run.later(0.1, look)
            return
        if node.alive() or node.popen.returncode != 0:
            run.fail("SIGTERM of %s: %s" % (node.name, "it does not end" if node.alive() else
                                             "exit code %d" % node.popen.returncode))
            node.kill()
        run.later(random.Random(began).uniform(0.2, 2), lambda: run.bring_back(node))

    look()
    return node.name, 0


# How often each is drawn, and whether it needs a network of its own.
ALL = {
    "kill": (kill, 4, False), "stop_short": (stop_short, 3, False), "stop_long": (stop_long, 2, False),
    "slow_node": (slow_node, 2, False), "clock": (clock, 2, False), "twin": (twin, 1, False),
    "twin_copy": (twin_copy, 1, False), "head_kill": (head_kill, 2, False), "head_stop": (head_stop, 1, False),
    "stale_flags": (stale_flags, 1, False), "stale_model": (stale_model, 1, False),
    "stale_node": (stale_node, 1, False), "two_losses": (two_losses, 2, False),
    "loss_in_recovery": (loss_in_recovery, 3, False), "primary_and_shadow": (primary_and_shadow, 2, False),
    "drain": (drain, 3, False), "cut": (cut, 2, True), "cut_out": (cut_out, 2, True), "cut_in": (cut_in, 2, True),
    "pull": (pull, 2, True), "loss": (loss, 2, True), "slow_link": (slow_link, 2, True), "part": (part, 2, True),
    "disk_full": (disk_full, 1, True), "head_disk_full": (head_disk_full, 1, True),
}
