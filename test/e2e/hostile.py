#!/usr/bin/env python3
"""A peer with bad manners, over real TCP and TLS, for hostile.sh.

hostile.py ATTACK ADDRESS [--state DIR] [--token TOKEN] [--n N]

--state: the folder of a node that was enrolled, whose certificate was stolen. Prints what came of it; exit code 0 if the
other end did what it should.
"""
import argparse
import base64
import os
import random
import re
import select
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import warnings

warnings.simplefilter("ignore", DeprecationWarning)
TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PATIENCE_S = 9  # a listener gives a new connection 5 s to say what it wants


def enum_of(header, name):
    with open(os.path.join(TOP, "src", header)) as f:
        return int(re.search(r"\b%s = (\d+)" % name, f.read()).group(1))


VERSION = int(os.environ.get("FRAME_VERSION") or enum_of("wire/frame.h", "FRAME_VERSION"))
(ENROL, ENROLLED, REFUSED, JOIN, WELCOME, LOAD, READY, FAILED, HEARTBEAT, ECHO, STEP, TOKENS, BYE, BULK, ASK, MANIFEST,
 FETCH, CHUNK, ATTACH, NEXT, HOT, UNLOAD, REPLAY, FED, LEAVE) = range(1, 26)

CRC = []
for i in range(256):
    for _ in range(8):
        i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
    CRC.append(i)


def crc32c(data):
    c = 0xFFFFFFFF
    for b in data:
        c = CRC[(c ^ b) & 255] ^ c >> 8
    return c ^ 0xFFFFFFFF


def frame(kind, control=b"", payload=b"", epoch=0, stage=0, step=0, rows=0, dtype=0, version=VERSION, **lies):
    """lies: control_bytes, payload_bytes, body_crc, magic, crc, instead of what is true."""
    h = struct.pack("<4sHHIIQIIII", lies.get("magic", b"LOOM"), version, kind, epoch, stage, step, rows, dtype,
                    lies.get("control_bytes", len(control)), lies.get("payload_bytes", len(payload)))
    h += bytes(16) + struct.pack("<I", lies.get("body_crc", crc32c(control + payload)))
    return h + struct.pack("<I", lies.get("crc", crc32c(h))) + control + bytes(-len(control) % 8) + payload


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def message(*fields):
    """(number, value): an int is a varint, ("fixed64", x), bytes, or a list of ints (packed)."""
    out = b""
    for number, v in fields:
        if isinstance(v, int):
            out += varint(number << 3) + varint(v)
        elif isinstance(v, tuple):
            out += varint(number << 3 | 1) + struct.pack("<Q", v[1])
        else:
            v = b"".join(map(varint, v)) if isinstance(v, list) else v
            out += varint(number << 3 | 2) + varint(len(v)) + v
    return out


def fields_of(data):
    """{number: [values]} of a message."""
    found, at = {}, 0

    def take():
        nonlocal at
        n = shift = 0
        while True:
            b = data[at]
            at += 1
            n |= (b & 127) << shift
            shift += 7
            if b < 128:
                return n

    while at < len(data):
        key = take()
        if key & 7 == 0:
            v = take()
        else:
            size = take() if key & 7 == 2 else 8 if key & 7 == 1 else 4
            v, at = data[at:at + size], at + size
        found.setdefault(key >> 3, []).append(v)
    return found


class Peer:
    def __init__(self, address, state=None, version=ssl.TLSVersion.TLSv1_3, cert=None):
        host, port = address.rsplit(":", 1)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        if cert:
            context.load_cert_chain(*cert)
        elif state:
            context.load_cert_chain(os.path.join(state, "node.crt"), os.path.join(state, "node.key"))
        raw = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        try:
            self.socket = context.wrap_socket(raw)
        except (OSError, ssl.SSLError):
            raw.close()
            raise
        self.data = b""

    def send(self, data):
        self.socket.sendall(data)

    def frame(self, seconds=PATIENCE_S):
        """(type, epoch, stage, control); None: it was closed. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while True:
            if len(self.data) >= 64:
                kind, epoch, stage = struct.unpack_from("<HII", self.data, 6)
                control, payload = struct.unpack_from("<II", self.data, 32)
                whole = 64 + control + -control % 8 + payload
                if len(self.data) >= whole:
                    found = kind, epoch, stage, self.data[64:64 + control]
                    self.data = self.data[whole:]
                    return found
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                got = self.socket.recv(65536)
            except TimeoutError:
                raise
            except (OSError, ssl.SSLError):
                return None
            if not got:
                return None
            self.data += got

    def fate(self, seconds=PATIENCE_S):
        """What came of it: "closed", "REFUSED: why", "BYE: why" or "kept"."""
        said = []
        try:
            while True:
                f = self.frame(seconds)
                if f is None:
                    return "; ".join(said + ["closed"])
                if f[0] in (REFUSED, BYE):
                    text = fields_of(f[3]).get(1, [b""])[0].decode(errors="replace")
                    said.append("%s: %s" % ("REFUSED" if f[0] == REFUSED else "BYE", text))
        except TimeoutError:
            return "; ".join(said + ["kept"])

    def close(self):
        self.socket.close()


def expect(what, fate, *right):
    print("%s: %s" % (what, fate))
    if not any(re.search(r, fate) for r in right):
        print("  it should have been: %s" % " or ".join(right))
        sys.exit(1)


def try_frames(a, what, frames, *right, state=None):
    """Each of the frames on a connection of its own."""
    for i, data in enumerate(frames):
        try:
            p = Peer(a.address, state or a.state)
            p.send(data)
            fate = p.fate()
            p.close()
        except (OSError, ssl.SSLError) as e:
            fate = "closed (%s)" % type(e).__name__
        expect("%s %d" % (what, i), fate, *right)


def garbage(a):
    """Bytes that are no TLS, then TLS that is no frame."""
    rng = random.Random(1)
    for data in (rng.randbytes(1 << 16), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + rng.randbytes(70000), b"\0" * 9):
        with socket.create_connection(tuple(a.address.rsplit(":", 1)), timeout=PATIENCE_S) as s:
            try:
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
                while s.recv(4096):
                    pass
                fate = "closed"
            except TimeoutError:
                fate = "kept"
            except OSError:
                fate = "closed"
        expect("%d bytes" % len(data), fate, "closed")
    if a.state:
        try_frames(a, "random bytes in TLS", [rng.randbytes(4096), b"LOOM" + rng.randbytes(60)], "closed")


def old_tls(a):
    try:
        Peer(a.address, a.state, ssl.TLSVersion.TLSv1_2)
        fate = "kept"
    except (OSError, ssl.SSLError) as e:
        fate = "closed (%s)" % e
    expect("TLS 1.2", fate, "closed")


def other_ca(folder):
    """A certificate of a CA that the attacker made, with the name of a node or of the head."""
    def openssl(*command):
        subprocess.run(["openssl", *command], check=True, capture_output=True, cwd=folder)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key",
            "-out", "ca.crt", "-subj", "/CN=loom")
    for name in ("node-0123456789abcdef", "head"):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", name + ".key",
                "-out", name + ".csr", "-subj", "/CN=" + name)
        openssl("x509", "-req", "-in", name + ".csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out",
                name + ".crt")
        yield os.path.join(folder, name + ".crt"), os.path.join(folder, name + ".key")


def wrong_ca(a):
    with tempfile.TemporaryDirectory() as folder:
        for cert in other_ca(folder):
            try:
                p = Peer(a.address, cert=cert)
                p.send(frame(JOIN, join(0)))
                fate = p.fate()
            except (OSError, ssl.SSLError) as e:
                fate = "closed (%s)" % type(e).__name__
            expect(os.path.basename(cert[0]), fate, "closed")


def join(selftest, **other):
    f = {"ln": 1, "isa": b"ref", "memory": 2 << 30, "port": 1, "name": b"liar", "boot": random.getrandbits(64) | 1, **other}
    return message((1, f["ln"]), (2, ("fixed64", selftest)), (3, f["isa"]), (4, f["memory"]), (5, f["port"]),
                   (6, f["name"]), (7, ("fixed64", f["boot"])))


def secret_of(token):
    body = token.split("-", 1)[1].upper()
    return base64.b32decode(body + "=" * (-len(body) % 8))[32:48]


def enrol(secret):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                        "k", "-out", "csr", "-outform", "DER", "-subj", "/CN=x"], check=True, capture_output=True,
                       cwd=folder)
        with open(os.path.join(folder, "csr"), "rb") as f:
            return frame(ENROL, message((1, secret), (2, f.read())))


def no_certificate(a):
    """All that needs a certificate, without one."""
    try_frames(a, "without a certificate", [frame(JOIN, join(0)), frame(BULK), frame(ATTACH, message((1, bytes(16)))),
                                            frame(STEP, epoch=1, step=1)], "closed")


def wrong_token(a):
    try_frames(a, "ENROL", [enrol(os.urandom(16)), enrol(b""), frame(ENROL, message((1, bytes(16)), (2, bytes(300)))),
                            frame(ENROL, os.urandom(200))], "REFUSED.*closed", "^closed")


def replayed_token(a):
    for right in ("kept|^closed", "REFUSED: .*used"):
        p = Peer(a.address)
        p.send(enrol(secret_of(a.token)))
        first = p.frame()
        if first and first[0] == REFUSED:
            fate = "REFUSED: " + fields_of(first[3])[1][0].decode()
        else:
            fate = "kept, frame %s" % (first and first[0])
        p.close()
        expect("ENROL with the same secret", fate, right)


def old_version(a):
    try_frames(a, "version", [frame(JOIN, join(0), version=v) for v in (VERSION - 1, VERSION + 1, 0xFFFF)],
               "version.*closed", "^closed")


def bad_frames(a):
    good = join(1)
    try_frames(a, "frame", [
        frame(JOIN, good, magic=b"MOOL"), frame(JOIN, good, crc=1), frame(JOIN, good, body_crc=1), frame(999, good),
        frame(0, good), frame(JOIN, good)[:-1] + b"\1", frame(JOIN, os.urandom(100)), frame(WELCOME, good),
        frame(JOIN, good, payload=bytes(64), dtype=1)], "REFUSED.*closed", "^closed")


def oversized(a):
    """Lengths that nobody has memory for; what was announced does not come, or comes without end."""
    for lies in ({"control_bytes": 0x7FFFFFFF}, {"payload_bytes": 0xFFFFFFFF}, {"control_bytes": 1 << 20},
                 {"payload_bytes": 1 << 28}):
        for kind in (JOIN, ENROL, STEP, ATTACH):
            p = Peer(a.address, a.state)
            fate = "kept"
            try:
                p.send(frame(kind, b"x" * 64, **lies))
                for _ in range(64):
                    p.send(bytes(1 << 16))
                fate = p.fate(2)
            except (OSError, ssl.SSLError):
                fate = "closed"
            p.close()
            expect("%s of type %d" % (lies, kind), fate, "closed")


def selftest_of(a):
    """The head says it to whoever has another one."""
    p = Peer(a.address, a.state)
    p.send(frame(JOIN, join(1)))
    fate = p.fate()
    found = re.search(r"the head's ([0-9a-f]{16})", fate)
    expect("a wrong self-test", fate, "REFUSED: .*self-test.*closed")
    return int(found.group(1), 16)


def bad_join(a):
    right = selftest_of(a)
    for what in ({"ln": 99}, {"memory": 1 << 60}, {"name": b"a\nforged line"}, {"name": b"\xff\xfe"}, {"name": b"x" * 300},
                 {"isa": b"y" * 100}, {"port": 1 << 20}):
        p = Peer(a.address, a.state)
        p.send(frame(JOIN, join(right, **what)))
        expect(str(what), p.fate(2), "REFUSED.*closed", "^closed")


def mutations(a):
    """Frames of all types with a few bits turned and the checksums made right again."""
    rng = random.Random(3)
    for _ in range(a.n):
        control = bytearray(rng.choice([join(1), message((1, bytes(16))), message((1, [0]), (2, [0]), (3, [1]), (6, [5]))]))
        for _ in range(rng.randrange(1, 8)):
            control[rng.randrange(len(control))] ^= 1 << rng.randrange(8)
        p = Peer(a.address, a.state)
        try:
            p.send(frame(rng.randrange(1, 30), bytes(control), rng.randbytes(rng.choice([0, 0, 64])), rng.randrange(3),
                         rng.randrange(70), rng.getrandbits(64), rng.randrange(1 << 20), rng.randrange(4)))
            p.send(rng.randbytes(rng.randrange(200)))
        except (OSError, ssl.SSLError):
            pass
        p.close()
    print("%d mutated frames" % a.n)


def flood(a):
    """Connects and says nothing. --state: not even after the handshake."""
    held = []
    for _ in range(a.n):
        try:
            held.append(Peer(a.address, a.state).socket if a.state else
                        socket.create_connection(tuple(a.address.rsplit(":", 1)), timeout=PATIENCE_S))
        except (OSError, ssl.SSLError):
            pass
    print("%d of %d connections stand" % (len(held), a.n), flush=True)
    end = time.monotonic() + PATIENCE_S + 3
    left = list(held)
    while left and time.monotonic() < end:
        for s in select.select(left, [], [], 0.5)[0]:
            try:
                s.settimeout(0.2)
                if not s.recv(65536):
                    left.remove(s)
            except TimeoutError:
                pass
            except (OSError, ssl.SSLError):
                left.remove(s)
    expect("after %d s" % PATIENCE_S, "%d are left" % len(left), "^0 are left")


def slow_bulk(a):
    """Asks for weights and does not read them."""
    p = Peer(a.address, a.state)
    p.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    p.send(frame(BULK))
    fate = "kept"
    try:
        for i in range(2000):
            p.send(frame(FETCH, message((1, b"model.embed_tokens.weight"), (3, 1 << 20)), step=i + 1))
        time.sleep(1)
        fate = p.fate(3)
    except (OSError, ssl.SSLError):
        fate = "closed"
    expect("2000 questions at once", fate, "closed")


def attach_wrong_key(a):
    """At a node: steps without a key, with a wrong one, and of another epoch."""
    steps = frame(STEP, message((1, [0])), bytes(64), epoch=1, stage=1, step=1, rows=1, dtype=1)
    try_frames(a, "without a key", [steps, frame(JOIN, join(1)), frame(LOAD, b"")], "closed")
    for epoch in (0, 1, 2, 1 << 30):
        p = Peer(a.address, a.state)
        try:
            p.send(frame(ATTACH, message((1, os.urandom(16))), epoch=epoch, stage=1))
            p.send(steps)
        except (OSError, ssl.SSLError):
            pass
        expect("wrong key of epoch %d" % epoch, p.fate(14), "closed")


def lying_steps(epoch, stage):
    """Steps whose parts contradict each other, or name what cannot be."""
    one = [(1, [0]), (2, [0]), (3, [1]), (4, [0]), (5, [1]), (6, [5]), (7, [0])]  # a row of a sequence in block 0

    def step(*changes, rows=1, payload=513, dtype=2, number=1):
        fields = dict(one)
        fields.update(changes)
        return frame(STEP, message(*fields.items()), bytes(payload), epoch=epoch, stage=stage, step=number, rows=rows,
                     dtype=dtype)

    return [step(rows=5), step(payload=0, dtype=0), step(payload=512), step(payload=5130), step(dtype=9),
            step((1, [9999])), step((2, [1 << 31])), step((3, [1 << 31])), step((3, [0])), step((3, [1, 1])),
            step((5, [1 << 30])), step((7, [1 << 31])), step((6, [1 << 31])), step((6, [5] * 5000), rows=5000),
            step((8, [7, 7, 1 << 31])), step((9, [77])), step(number=1 << 40), frame(
                STEP, os.urandom(300), bytes(513), epoch=epoch, stage=stage, step=1, rows=1, dtype=2)] + [
        frame(REPLAY, message(*one, *more), bytes(n), epoch=epoch, stage=stage, step=at, rows=1, dtype=2)
        for more in ([], [(17, 1)], [(18, 1)], [(17, 1), (18, 1)], [(16, 1 << 62)])
        for n in (0, 513) for at in (0, 1, 1 << 50)] * (VERSION > 1)


def next_holders(control):
    """(key, [address]) of a LOAD."""
    f = fields_of(control)
    if VERSION == 1:
        return f.get(7, [b""])[0], [x.decode() for x in f.get(5, [])]
    return f.get(7, [b""])[0], [fields_of(h).get(2, [b""])[0].decode() for h in f.get(9, [])]


class Liar(Peer):
    """A node that was let in and holds nothing of what it says it holds."""

    def __init__(self, a):
        selftest = selftest_of(a)
        super().__init__(a.address, a.state)
        self.send(frame(JOIN, join(selftest)))
        f = self.frame()
        if not f or f[0] != WELCOME:
            raise SystemExit("the liar is not let in: %s" % (f,))
        self.loads, self.closed, self.next_beat = [], False, 0

    def turn(self, seconds, on_load=lambda f: None):
        """Answers LOADs with READY and beats, for so long or until it is thrown out."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.closed:
            if time.monotonic() >= self.next_beat:
                self.next_beat = time.monotonic() + 0.1
                self.tell(frame(HEARTBEAT, message((1, 1)), epoch=self.loads[-1][1] if self.loads else 0))
            try:
                f = self.frame(0.05)
            except TimeoutError:
                continue
            if f is None:
                self.closed = True
            elif f[0] == LOAD:
                self.loads.append(f)
                on_load(f)
                self.tell(frame(READY, epoch=f[1], stage=f[2]))

    def tell(self, data):
        try:
            self.send(data)
        except (OSError, ssl.SSLError):
            self.closed = True


def liar_silent(a):
    """Says READY and computes nothing."""
    p = Liar(a)
    p.turn(a.n)
    print("%d stages were given to it; %s" % (len(p.loads), "thrown out" if p.closed else "kept"))


def liar_tokens(a):
    """Results of steps that nobody asked for, of tokens and slots that there are not."""
    p = Liar(a)

    def lie(f):
        for step in (0, 1, 2, 1 << 40):
            for fields in ([(1, [0]), (2, [2])], [(1, [0]), (2, [1 << 31])], [(1, [1 << 31]), (2, [2])], [(1, [0] * 300)]):
                p.tell(frame(TOKENS, message(*fields), epoch=f[1], stage=f[2], step=step))

    p.turn(a.n, lie)
    print("%d stages were given to it; %s" % (len(p.loads), "thrown out" if p.closed else "kept"))


def liar_steps(a):
    """Shows the right key to the next stage's holders, and sends them steps that lie."""
    p, told = Liar(a), [0]

    def lie(f):
        key, addresses = next_holders(f[3])
        for address in filter(None, addresses):
            for data in lying_steps(f[1], f[2] + 1):
                try:
                    q = Peer(address, a.state)
                    q.send(frame(ATTACH, message((1, key)), epoch=f[1], stage=f[2]))
                    q.send(data)
                    told[0] += 1
                    q.fate(0.1)
                    q.close()
                except (OSError, ssl.SSLError):
                    pass

    p.turn(a.n, lie)
    print("%d stages were given to it, %d lies told; %s" % (len(p.loads), told[0], "thrown out" if p.closed else "kept"))


def liar_noise(a):
    """Frames that a node may send, at wrong times and in numbers: READY and FAILED of all epochs, beats of all stages."""
    p = Liar(a)
    rng = random.Random(5)
    kinds = [READY, FAILED, HEARTBEAT, TOKENS] + [FED, FED, HEARTBEAT] * (VERSION > 1)
    for _ in range(2000):
        kind, control = rng.choice(kinds), b""
        if kind == FAILED:
            control = message((1, b"it does not work"))
        elif kind == TOKENS:
            control = message((1, [0]), (2, [1]))
        elif kind == HEARTBEAT:
            far = [message((1, rng.choice([0, 1, 63, 1 << 31])), (2, 1), (3, 1 << 60), (4, 1 << 61), (6, 1 << 62))
                   for _ in range(rng.randrange(20))] * (VERSION > 1)
            control = message((1, rng.getrandbits(60)), (3, rng.getrandbits(60)), (5, rng.getrandbits(31)),
                              (6, rng.getrandbits(31)), *[(9, f) for f in far])
        p.tell(frame(kind, control, epoch=rng.choice([0, 1, 2, 3, 1 << 31]), stage=rng.randrange(64),
                     step=rng.getrandbits(rng.choice([2, 60]))))
    p.turn(a.n)
    print("thrown out" if p.closed else "kept")


def liar_deaf(a):
    """Never reads what the head sends, and asks to leave and to stay in turn."""
    p, leave = Liar(a), 0
    end = time.monotonic() + a.n
    while time.monotonic() < end and not p.closed:
        p.tell(frame(HEARTBEAT, message((1, 1))))
        leave = 1 - leave
        if VERSION > 1:
            p.tell(frame(LEAVE, message((1, leave), (2, b"its owner is back"))))
        time.sleep(0.01)
    print("thrown out" if p.closed else "kept")


ATTACKS = {f.__name__: f for f in (
    garbage, old_tls, wrong_ca, no_certificate, wrong_token, replayed_token, old_version, bad_frames, oversized, bad_join,
    mutations, flood, slow_bulk, attach_wrong_key, liar_silent, liar_tokens, liar_steps, liar_noise, liar_deaf)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("attack", choices=ATTACKS)
    p.add_argument("address", help="HOST:PORT")
    p.add_argument("--state")
    p.add_argument("--token")
    p.add_argument("--n", type=int, default=100)
    a = p.parse_args()
    ATTACKS[a.attack](a)


if __name__ == "__main__":
    main()
