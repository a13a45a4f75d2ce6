"""Hosts on one machine: network namespaces on a bridge, with links that can be slowed, lose packets, be cut and pulled.

`contain(main)` runs main() in network, mount and process namespaces of its own. The bridge stands in there, so nothing
of the machine's own network is touched; and when main() ends, in whatever way, the kernel ends all that it started and
removes every device, rule and mount with the namespaces. What is slowed or cut is a host's link, never the machine's.
"""
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NET = "10.77.0."
HUB = NET + "254"
NEWNS, NEWUSER, NEWPID, NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 0x40000, 2
PR_SET_PDEATHSIG = 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
CUTS = ("none", "both", "out", "in")

libc = ctypes.CDLL(None, use_errno=True)


class Missing(Exception):
    """What this machine lacks."""


def check(rc, what):
    if rc != 0:
        raise Missing("%s: %s" % (what, os.strerror(ctypes.get_errno())))


def unshare_all():
    """As root, or in a user namespace in which this user is root."""
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(NEWNET | NEWNS | NEWPID) == 0:
        return
    check(libc.unshare(NEWUSER | NEWNET | NEWNS | NEWPID), "namespaces")
    for name, text in (("setgroups", "deny"), ("uid_map", "0 %d 1" % uid), ("gid_map", "0 %d 1" % gid)):
        with open("/proc/self/" + name, "w") as f:
            f.write(text)


def mount(kind, where, options=""):
    check(libc.mount(kind.encode(), where.encode(), kind.encode(), 0, options.encode()), "mount of " + where)


def wait_for(pid):
    """Reaps whatever ends, as the first process of a process namespace has to, until pid ends; its exit code."""
    while True:
        try:
            ended, status = os.wait()
        except InterruptedError:
            continue
        if ended == pid:
            return os.waitstatus_to_exitcode(status) & 0xff


def pass_on_signals(pid):
    def pass_on(number, _frame):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)


def end_once(_number=None, _frame=None):
    """The same signal comes from the terminal and from the parents: what is cleaned up must not be interrupted."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def catch_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_once)


def contain(main):
    """Runs main() inside; returns its exit code. Raises Missing if that cannot be done here. Before any thread."""
    for tool in ("ip", "tc", "nft", "nsenter"):
        if not shutil.which(tool) and not os.path.exists("/usr/sbin/" + tool):
            raise Missing("the program %s (packages iproute2, nftables, util-linux)" % tool)
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    unshare_all()
    sys.stdout.flush()
    first = os.fork()
    if first:
        pass_on_signals(first)
        return wait_for(first)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    mount("proc", "/proc")
    inner = os.fork()
    if inner:
        pass_on_signals(inner)
        os._exit(wait_for(inner))
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    catch_signals()
    code = 1
    try:
        code = main()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        code = 130
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    os._exit(code)


def tool(work, loom, name, *flags):
    """A program of this folder: as it was built beside loom, or built here and now."""
    built = os.path.join(os.path.dirname(loom), "test", "chaos", name)
    if not os.path.exists(built):
        source = os.path.join(HERE, name.split(".")[0] + ".c")
        built = os.path.join(work, name)
        subprocess.run(["cc", "-std=c17", "-D_GNU_SOURCE", "-O2", source, "-o", built, *flags], check=True)
    return built


def call(*command, **kw):
    p = subprocess.run(command, capture_output=True, text=True, **kw)
    if p.returncode:
        raise Missing("%s: %s" % (" ".join(command), (p.stderr or p.stdout).strip()))
    return p.stdout


class Host:
    """A network namespace with one device, eth0, whose other end is a port of the bridge."""

    def __init__(self, lab, number, address):
        self.lab, self.port, self.address = lab, "p%d" % number, address
        self.cable = None  # the user-space one, if that is what joins it
        self.ns = self.new_namespace()
        path = self.path()
        if lab.delay_us:
            self.plug_cable(path)
        else:
            call("ip", "link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", path)
        call("ip", "link", "set", self.port, "master", "br0", "up")
        self.do("ip", "link", "set", "lo", "up")
        self.do("ip", "link", "set", "eth0", "up")
        self.do("ip", "addr", "add", address + "/24", "dev", "eth0")
        self.rate(lab.mbit)

    @staticmethod
    def new_namespace():
        """Made by a child that ends at once: the open file keeps it, and nothing has to be removed later."""
        ready, told = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            ok = libc.unshare(NEWNET) == 0
            os.write(ready[1], b"y" if ok else b"n")
            os.read(told[0], 1)
            os._exit(0)
        answer = os.read(ready[0], 1)
        fd = os.open("/proc/%d/ns/net" % child, os.O_RDONLY | os.O_CLOEXEC)
        os.write(told[1], b".")
        os.waitpid(child, 0)
        for end in (*ready, *told):
            os.close(end)
        if answer != b"y":
            raise Missing("a network namespace")
        return fd

    def path(self):
        return "/proc/%d/fd/%d" % (os.getpid(), self.ns)

    def inside(self, command):
        """The command line that runs command in this host. It is one process: nsenter becomes the command."""
        return ["nsenter", "--net=" + self.path(), *command]

    def do(self, *command):
        call(*self.inside(command))

    def plug_cable(self, path):
        self.cable = subprocess.Popen([self.lab.tundelay, self.port, path, "eth0", str(self.lab.delay_us), "0"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.cable.stdout.readline() != "ok\n":
            raise Missing("a TAP device (/dev/net/tun)")

    def order(self, text):
        self.cable.stdin.write(text + "\n")
        self.cable.stdin.flush()
        return self.cable.stdout.readline().strip()

    def rate(self, mbit):
        """Of both directions; 0: no bound. By tbf on either end, or by the user-space cable."""
        if self.cable:
            self.order("rate %d" % mbit)
            return
        shape = ["rate", "%dmbit" % mbit, "burst", str(max(32 << 10, mbit * 1000000 // 8 // 200)), "latency", "200ms"]
        for run, device in ((call, self.port), (self.do, "eth0")):
            try:
                run("tc", "qdisc", *(["replace", "dev", device, "root", "tbf", *shape] if mbit else
                                     ["del", "dev", device, "root"]))
            except Missing:
                if mbit:
                    raise

    def rules(self, out, into):
        """What the bridge's port does with frames from this host and to it: lists of nft statements."""
        lines = ["flush chain netdev lab %s_%s" % (way, self.port) for way in ("out", "in")]
        lines += ["add rule netdev lab %s_%s %s" % (way, self.port, s)
                  for way, those in (("out", out), ("in", into)) for s in those]
        call("nft", "-f", "-", input="\n".join(lines) + "\n")

    def cut(self, which):
        """none, both, out (only what it sends is lost) or in."""
        self.rules(["drop"] if which in ("both", "out") else [], ["drop"] if which in ("both", "in") else [])

    def part_from(self, other):
        """The two do not reach each other any more, while both reach all others."""
        self.rules(["ip daddr %s drop" % other.address], ["ip saddr %s drop" % other.address])

    def loss(self, permille):
        drop = ["numgen random mod 1000 < %d drop" % permille]
        self.rules(drop if permille else [], drop if permille else [])

    def pull(self, out):
        """Pulls the cable out of the bridge or puts it back: at once, without starting a program."""
        if self.cable:
            self.order("cut %s" % ("both" if out else "none"))
            return
        name = self.port.encode().ljust(16, b"\0")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            flags = struct.unpack_from("H", fcntl.ioctl(s, SIOCGIFFLAGS, name + bytes(24)), 16)[0]
            flags = flags & ~IFF_UP if out else flags | IFF_UP
            fcntl.ioctl(s, SIOCSIFFLAGS, name + struct.pack("H", flags) + bytes(22))

    def heal(self):
        self.pull(False)
        self.cut("none")
        self.rate(self.lab.mbit)


class Lab:
    """The bridge in this process's own namespaces, and the hosts on it. This process itself is HUB."""

    def __init__(self, work, loom, names, mbit=0, delay_us=0):
        self.mbit, self.delay_us = mbit, delay_us
        self.tundelay = tool(work, loom, "tundelay", "-pthread") if delay_us else None
        for command in ("link set lo up", "link add br0 type bridge", "link set br0 up",
                        "addr add %s/24 dev br0" % HUB):
            call("ip", *command.split())
        call("nft", "add", "table", "netdev", "lab")
        self.host, self.disks = {}, []
        for i, name in enumerate(names):
            h = self.host[name] = Host(self, i, NET + str(i + 1))
            for way, hook in (("out", "ingress"), ("in", "egress")):  # as the port sees it
                call("nft", "add", "chain", "netdev", "lab", "%s_%s" % (way, h.port),
                     '{ type filter hook %s device "%s" priority 0; }' % (hook, h.port))

    def disk(self, where, megabytes):
        """A small disk that can be filled."""
        os.makedirs(where, exist_ok=True)
        mount("tmpfs", where, "size=%dm" % megabytes)
        self.disks.append(where)

    def close(self):
        """The folders on which disks were mounted can be removed then."""
        for where in self.disks:
            libc.umount2(where.encode(), MNT_DETACH)


class Loopback:
    """Where namespaces cannot be had: all on 127.0.0.1, without faults of the network and without small disks."""

    class Plain:
        address = "127.0.0.1"

        @staticmethod
        def inside(command):
            return command

    def __init__(self, names):
        self.host = {name: self.Plain() for name in names}

    @staticmethod
    def disk(where, megabytes):
        os.makedirs(where, exist_ok=True)

    def close(self):
        pass
