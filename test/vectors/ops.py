#!/usr/bin/env python3
"""ops.py > ops.json: test vectors of doc/numerics.md 3.1, 3.3, 6 and 12, made from its text alone.

Every f32 operation is done in exact rational arithmetic and rounded once, so that no floating point unit has a say; the
true values come from `decimal` with 60 digits. Inputs come from a small generator that the test has, too. Numbers of
the results are bit patterns.
"""
import json
import struct
from decimal import Decimal, getcontext
from fractions import Fraction

getcontext().prec = 60
NO_KEYS = Fraction(struct.unpack("<f", struct.pack("<f", -1e30))[0])


def value(bits):
    return Fraction(struct.unpack("<f", struct.pack("<I", bits))[0])


def rounded(x, digits=24, low=-149, limit=128):
    """x to the nearest number of so many binary digits, ties to even."""
    if x == 0:
        return Fraction(0)
    a = abs(x)
    e = a.numerator.bit_length() - a.denominator.bit_length()
    if a < Fraction(2) ** e:
        e -= 1
    quantum = Fraction(2) ** max(e - digits + 1, low)
    y = round(x / quantum) * quantum
    assert abs(y) < Fraction(2) ** limit, "overflow"
    return y


def f64(x):
    return rounded(Fraction(x), 53, -1074, 1024)


def bits(x):
    return struct.unpack("<I", struct.pack("<f", float(x)))[0]


def f32(x):
    return rounded(Fraction(x))


def fma(a, b, c):
    return rounded(a * b + c)


def root(x):
    """The nearest f32 to the square root."""
    scale = 1 << 200
    n = x.numerator * x.denominator * scale * scale
    r, step = 0, 1 << (n.bit_length() // 2 + 1)
    while step:
        if (r + step) ** 2 <= n:
            r += step
        step >>= 1
    return rounded(Fraction(r, x.denominator * scale))


class Random:
    """u = u * 1664525 + 1013904223; a value in [-1, 1) of its upper 24 bits."""

    def __init__(self, seed):
        self.u = seed

    def unit(self):
        self.u = (self.u * 1664525 + 1013904223) & 0xFFFFFFFF
        return Fraction(self.u >> 8, 1 << 23) - 1

    def row(self, n, scale=1):
        return [f32(self.unit() * scale) for _ in range(n)]


# ---- 6.1, 12.1 to 12.3

LOG2E = value(0x3FB8AA3B)
EXP2 = [value(b) for b in (0x3920E99A, 0x3AAFA2B5, 0x3C1D96DE, 0x3D63576A, 0x3E75FDED, 0x3F317218, 0x3F800000)]
TANH = [value(b) for b in (0xBBCD9823, 0x3CAC9E83, 0xBD5C943D, 0x3E088693, 0xBEAAAAA5)]


def exp2(x):
    if x < -125:
        return Fraction(0)
    x = min(x, Fraction(127))
    n = round(x)
    f = x - n
    p = EXP2[0]
    for c in EXP2[1:]:
        p = fma(p, f, c)
    return p * Fraction(2) ** n


def tanh(x):
    a = abs(x)
    if a < value(0x3F0CCCCD):
        z = f32(a * a)
        p = TANH[0]
        for c in TANH[1:]:
            p = fma(p, z, c)
        y = fma(f32(a * z), p, a)
    else:
        e = exp2(f32(min(a, Fraction(16)) * value(0x4038AA3B)))
        y = f32(1 - f32(2 / f32(1 + e)))
    return -y if x < 0 else y


def softcap(x, cap):
    return f32(cap * tanh(f32(x * f32(1 / cap))))


def gelu(g):
    k = fma(f32(g * g), value(0xBDD2D3E8), value(0xC0135761))
    return f32(g / f32(1 + exp2(f32(g * k))))


def sigmoid(x):
    return f32(1 / f32(1 + exp2(f32(x * -LOG2E))))


def dec(x):
    return Decimal(x.numerator) / Decimal(x.denominator)


def true_tanh(x):
    e = (2 * x).exp()
    return (e - 1) / (e + 1)


def true_gelu(g):
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
    y = (2 / pi).sqrt() * (g + Decimal("0.044715") * g ** 3)
    return g / (1 + (-2 * y).exp())


def nearest(d):
    return bits(rounded(Fraction(d)))


def scalars():
    r = Random(1)
    xs = [Fraction(0), Fraction(1, 2 ** 126), Fraction(1, 2 ** 140), f32(Fraction(9)), f32(Fraction(91, 10)), Fraction(100)]
    xs += [value(0x3F0CCCCD + i) for i in range(-3, 4)]
    xs += [f32(r.unit() * Fraction(2) ** e) for e in range(-14, 5) for _ in range(12)]
    gs = [x for x in xs if abs(x) > Fraction(1, 2 ** 100) or x == 0] + [f32(Fraction(i, 7)) for i in range(-70, 71)]
    caps = [(f32(c), f32(r.unit() * c * Fraction(2) ** e)) for c in (30, 50, Fraction(7, 10)) for e in range(-9, 4)
            for _ in range(8)]
    return {
        "tanh": [[bits(x), bits(tanh(x)), nearest(true_tanh(dec(x)))] for x in xs],
        "gelu": [[bits(g), bits(gelu(g)), nearest(true_gelu(dec(g)))] for g in gs],
        "softcap": [[bits(x), bits(c), bits(softcap(x, c)), nearest(dec(c) * true_tanh(dec(x) / dec(c)))]
                    for c, x in caps],
        "sigmoid": [[bits(x), bits(sigmoid(x)), nearest(1 / (1 + (-dec(x)).exp()))] for x in xs],
    }


# ---- 12.5

def position_factor(pos, original, beta):
    m, k = Fraction(1 + pos // original), 0
    while m > Fraction(float.fromhex("0x1.6a09e667f3bcdp+0")):
        m, k = m / 2, k + 1
    z = f64((m - 1) / (m + 1))
    s, p = f64(z * z), Fraction(0)
    for i in range(23, 0, -2):
        p = f64(f64(p * s) + f64(Fraction(1, i)))
    ln = f64(f64(k * Fraction(float.fromhex("0x1.62e42fefa39efp-1"))) + 2 * f64(z * p))
    return f32(f64(1 + f64(beta * ln)))


def factors():
    out = []
    for beta in (Fraction(1, 10), Fraction(7, 3)):
        b = f32(beta)
        for pos, original in ((0, 16), (15, 16), (16, 16), (300, 16), (32767, 8192), (1048575, 64), (262143, 16384),
                              (1048575, 1)):
            m = Decimal(1 + pos // original)
            out.append([pos, original, bits(b), bits(position_factor(pos, original, b)), nearest(1 + dec(b) * m.ln())])
    return out


# ---- 12.6, 12.7

def best(scores, taken):
    left = [i for i in range(len(scores)) if not taken[i]]
    return max(left, key=lambda i: (scores[i], -i))


def router(logits, bias, top_k, groups, top_groups, norm, scale):
    n, size = len(logits), len(logits) // groups
    s = [sigmoid(x) for x in logits]
    c = [f32(a + b) for a, b in zip(s, bias)]
    taken = [False] * n
    if top_groups < groups:
        of_group = []
        for g in range(groups):
            two = sorted(c[g * size:(g + 1) * size], reverse=True)[:2]
            of_group.append(f32(sum(two)))
        ranked = sorted(range(groups), key=lambda g: (-of_group[g], g))
        taken = [e // size not in ranked[:top_groups] for e in range(n)]
    chosen, total = [], Fraction(0)
    for _ in range(top_k):
        e = best(c, taken)
        taken[e] = True
        chosen.append(e)
        total = f32(total + s[e])
    total = f32(total + value(0x1E3CE508))
    w = [f32(s[e] / total) if norm else s[e] for e in chosen]
    return chosen, [f32(x * scale) for x in w]


def routers():
    out = []
    shapes = ((8, 2, 1, 1), (16, 4, 4, 2), (12, 3, 12, 5), (64, 8, 8, 3), (160, 8, 1, 1), (9, 9, 3, 3))
    for i, (n, k, groups, top_groups) in enumerate(shapes * 2):
        seed, coarse = 100 + i, i % 3 == 0
        r = Random(seed)
        logits, bias = r.row(n, 4), r.row(n, Fraction(1, 2))
        if coarse:  # ties
            logits = [Fraction(int(x)) for x in logits]
            bias = [Fraction(int(4 * b), 4) for b in bias]
        norm, scale = i % 2 == 0, f32(Fraction(5, 2)) if i % 4 < 2 else Fraction(1)
        chosen, w = router(logits, bias, k, groups, top_groups, norm, scale)
        out.append({"seed": seed, "coarse": coarse, "n": n, "top_k": k, "n_groups": groups, "top_groups": top_groups,
                    "norm": norm, "scale": bits(scale), "index": chosen, "weight": [bits(x) for x in w]})
    return out


# ---- 6: attention of one query, with a cap and a window

def hadamard(x):
    h = 1
    x = list(x)
    while h < len(x):
        for i in range(0, len(x), 2 * h):
            for j in range(i, i + h):
                x[j], x[j + h] = f32(x[j] + x[j + h]), f32(x[j] - x[j + h])
        h *= 2
    return x


def quant(x):
    m = max(abs(v) for v in x)
    if m < Fraction(1, 2 ** 80):
        return [0] * len(x), Fraction(0)
    inverse = f32(127 / m)
    return [round(f32(v * inverse)) for v in x], f32(m * value(0x3C010204))


def ceil(x):
    return -((-x).numerator // (-x).denominator)


class State:
    def __init__(self, hd):
        self.m, self.l, self.o = NO_KEYS, Fraction(0), [Fraction(0)] * hd

    def merge(self, mb, lb, w, o):
        m = max(self.m, Fraction(mb))
        al, be = [Fraction(2) ** int(k) if k >= -125 else Fraction(0) for k in (self.m - m, mb - m)]
        self.l = fma(lb, be, f32(self.l * al))
        wb = f32(w * be)
        self.o = [fma(wb, a, f32(b * al)) for a, b in zip(o, self.o)]
        self.m = m


def attention(q, ks, vs, pos, window, scale, cap, int8, had):
    hd = len(q)
    lo = max(0, pos - window + 1) if window else 0
    c = f32(cap * LOG2E)
    total, segment = State(hd), State(hd)
    if had:
        q, ks = hadamard(q), [hadamard(k) if lo <= j <= pos else k for j, k in enumerate(ks)]
    if int8:
        q, dq = quant(q)
        qs = f32(dq * scale)
    for j0 in range(lo // 64 * 64, pos + 1, 64):
        valid = [j for j in range(j0, j0 + 64) if lo <= j <= pos]
        t, v, e = {}, {}, [Fraction(0)] * 64
        for j in valid:
            if int8:
                k, dk = quant(ks[j])
                u = f32(f32(sum(a * b for a, b in zip(q, k))) * f32(qs * dk))
                v[j] = quant(vs[j])
            else:
                u = Fraction(0)
                for a, b in zip(q, ks[j]):
                    u = fma(a, b, u)
                u = f32(u * scale)
            t[j] = softcap(u, c) if cap else u
        mb = ceil(max(t.values()))
        part = [Fraction(0)] * 8
        for j in range(64):
            if j0 + j in t:
                e[j] = exp2(f32(t[j0 + j] - mb))
            part[j % 8] = f32(part[j % 8] + e[j])
        lb = f32(f32(f32(part[0] + part[4]) + f32(part[2] + part[6])) +
                 f32(f32(part[1] + part[5]) + f32(part[3] + part[7])))
        o, w = [Fraction(0)] * hd, Fraction(1)
        if int8:
            f = {j: f32(e[j - j0] * v[j][1]) for j in valid}
            a = max(f.values())
            r = Fraction(0) if a < Fraction(1, 2 ** 80) else f32(255 / a)
            p = {j: round(f32(f[j] * r)) for j in valid}
            o = [f32(sum(p[j] * v[j][0][d] for j in valid)) for d in range(hd)]
            w = f32(a * value(0x3B808081))
        else:
            for j in valid:
                o = [fma(e[j - j0], vs[j][d], o[d]) for d in range(hd)]
        segment.merge(mb, lb, w, o)
        if (j0 + 64) % 1024 == 0 or j0 + 64 > pos:
            total.merge(segment.m, segment.l, Fraction(1), segment.o)
            segment = State(hd)
    return [f32(x / total.l) for x in total.o]


def true_attention(q, ks, vs, pos, window, cap, hd):
    lo = max(0, pos - window + 1) if window else 0
    s = {j: sum(dec(a) * dec(b) for a, b in zip(q, ks[j])) / Decimal(hd).sqrt() for j in range(lo, pos + 1)}
    if cap:
        s = {j: dec(cap) * true_tanh(x / dec(cap)) for j, x in s.items()}
    top = max(s.values())
    e = {j: (x - top).exp() for j, x in s.items()}
    total = sum(e.values())
    return [sum(e[j] * dec(vs[j][d]) for j in e) / total for d in range(hd)]


def attentions():
    out = []
    for i, (hd, pos, window, cap, int8, had) in enumerate((
            (8, 70, 0, 2, False, False), (6, 1100, 0, 50, False, False), (10, 1100, 1050, 30, False, False),
            (8, 1090, 300, 0, False, False), (8, 1050, 0, 3, True, True), (6, 200, 100, 50, True, False),
            (12, 1060, 1030, 0, True, False))):
        seed = 200 + i
        r = Random(seed)
        q = r.row(hd, 6)
        ks, vs = [], []
        for _ in range(pos + 1):
            ks.append(r.row(hd, 3))
            vs.append(r.row(hd, 2))
        scale = f32(LOG2E / root(Fraction(hd)))
        if had:
            scale = f32(scale / hd)
        got = attention(q, ks, vs, pos, window, scale, Fraction(cap), int8, had)
        true = true_attention(q, ks, vs, pos, window, Fraction(cap), hd)
        out.append({"seed": seed, "head_dim": hd, "pos": pos, "window": window, "cap": cap, "int8": int8, "had": had,
                    "out": [bits(x) for x in got], "true": [nearest(x) for x in true]})
    return out


# ---- 3.1 (L8) and 3.3 (F32) with a long K

def products():
    out = []
    for i, k in enumerate((576, 1025, 2880, 12288)):
        r = Random(300 + i)
        x, w = r.row(k, 4), r.row(k)
        acc = total = Fraction(0)
        for b in range(0, k, 128):
            a, da = quant(x[b:b + 128])
            q, d = quant(w[b:b + 128])
            acc = fma(da, fma(d, f32(sum(m * n for m, n in zip(q, a))), Fraction(0)), acc)
            if (b + 128) % 1024 == 0 or b + 128 >= k:
                total, acc = f32(total + acc), Fraction(0)
        floats = Fraction(0)
        for b in range(0, k, 64):
            s = Fraction(0)
            for m, n in zip(w[b:b + 64], x[b:b + 64]):
                s = fma(m, n, s)
            floats = f32(floats + s)
        out.append({"seed": 300 + i, "k": k, "l8": bits(total), "f32": bits(floats),
                    "true": nearest(dec(sum(m * n for m, n in zip(w, x))))})
    return out


def main():
    data = scalars() | {"position_factor": factors(), "router": routers(), "attention": attentions(),
                        "product": products()}
    lines = []
    for name, rows in data.items():
        lines.append(f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "]")
    print("{" + ",\n".join(lines) + "}")


if __name__ == "__main__":
    main()
