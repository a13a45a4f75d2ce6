#!/usr/bin/env python3
"""Makes rope_vectors.h: RoPE frequencies by the published formulas, in 60 digits. Needs mpmath."""
from mpmath import mp, mpf, log, sqrt, pi, floor, ceil

mp.dps = 60


def plain(theta, dim):
    return [1 / mpf(theta) ** (mpf(2 * i) / dim) for i in range(dim // 2)]


def linear(theta, dim, factor):
    return [f / factor for f in plain(theta, dim)], mpf(1)


def llama3(theta, dim, factor, low, high, old):
    out = []
    for f in plain(theta, dim):
        wave = 2 * pi / f
        if wave < mpf(old) / high:
            out.append(f)
        elif wave > mpf(old) / low:
            out.append(f / factor)
        else:
            s = (mpf(old) / wave - low) / (mpf(high) - low)
            out.append((1 - s) * f / factor + s * f)
    return out, mpf(1)


def mscale(scale, m):
    return mpf(1) if scale <= 1 else mpf(m) / 10 * log(scale) + 1


def yarn(theta, dim, factor, old, fast=32, slow=1, truncate=True, m=0, m_all=0, attention=None):
    def pair(rotations):
        return dim * log(old / (rotations * 2 * pi)) / (2 * log(theta))
    lo, hi = pair(mpf(fast)), pair(mpf(slow))
    if truncate:
        lo, hi = floor(lo), ceil(hi)
    lo, hi = max(lo, mpf(0)), min(hi, mpf(dim - 1))
    out = []
    for i, f in enumerate(plain(theta, dim)):
        ramp = min(max((i - lo) / (hi - lo), mpf(0)), mpf(1))
        out.append(f / factor * ramp + f * (1 - ramp))
    if attention is None:
        attention = mscale(factor, m) / mscale(factor, m_all) if m and m_all else mscale(factor, 1)
    return out, mpf(attention)


def longrope(theta, dim, old, window, divisors):
    factor = mpf(window) / old
    attention = mpf(1) if factor <= 1 else sqrt(1 + log(factor) / log(old))
    return [f / mpf(d) for f, d in zip(plain(theta, dim), divisors)], attention


def parameters(**kw):
    def text(v):
        if isinstance(v, bool):
            return "true" if v else "false"
        if isinstance(v, str):
            return '"%s"' % v
        return str(v)
    return "{%s}" % ",".join('"%s":%s' % (k, text(v)) for k, v in kw.items())


short = [round(1 + 0.02 * i, 2) for i in range(48)]
long = [round(1.05 + 1.25 * i, 2) for i in range(48)]
phi = parameters(rope_type="longrope", short_factor=short, long_factor=long).replace("'", "")
cases = [
    ("linear", 128, 16384, 16384, "", parameters(rope_type="linear", factor=4.0, rope_theta=10000.0), linear(10000, 128, 4)),
    ("llama 3.1", 128, 131072, 131072, "",
     parameters(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=8192, rope_theta=500000.0), llama3(500000, 128, 8, 1, 4, 8192)),
    ("llama 3.2", 64, 131072, 131072, "",
     parameters(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=8192, rope_theta=500000.0), llama3(500000, 64, 32, 1, 4, 8192)),
    ("yarn", 128, 131072, 131072, "",
     parameters(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768, rope_theta=1000000.0),
     yarn(1000000, 128, mpf(4), mpf(32768))),
    ("yarn, attention factor", 128, 65536, 65536, "",
     parameters(rope_type="yarn", factor=8.0, original_max_position_embeddings=8192, beta_fast=32.0, beta_slow=1.0,
                attention_factor=1.2079441541679836, rope_theta=500000.0),
     yarn(500000, 128, mpf(8), mpf(8192), attention="1.2079441541679836")),
    ("yarn, mscale", 128, 262144, 262144, "",
     parameters(rope_type="yarn", factor=16.0, original_max_position_embeddings=16384, mscale=1.0, mscale_all_dim=1.0,
                rope_theta=1000000.0), yarn(1000000, 128, mpf(16), mpf(16384), m=1, m_all=1)),
    ("yarn, not truncated", 64, 131072, 131072, "",
     parameters(rope_type="yarn", factor=32.0, original_max_position_embeddings=4096, truncate=False,
                rope_theta=150000.0), yarn(150000, 64, mpf(32), mpf(4096), truncate=False)),
    ("yarn, no factor", 64, 8192, 8192, "",
     parameters(rope_type="yarn", original_max_position_embeddings=2048, rope_theta=10000.0),
     yarn(10000, 64, mpf(4), mpf(2048))),
    ("longrope, short", 96, 131072, 4096, '"original_max_position_embeddings":4096', phi,
     longrope(10000, 96, 4096, 131072, short)),
    ("longrope, long", 96, 131072, 4097, '"original_max_position_embeddings":4096', phi,
     longrope(10000, 96, 4096, 131072, long)),
    ("longrope of part of a head", 128, 131072, 131072,
     '"original_max_position_embeddings":4096,"partial_rotary_factor":0.75', phi,
     longrope(10000, 96, 4096, 131072, long)),
    ("part of a head", 128, 4096, 4096, '"partial_rotary_factor":0.5', parameters(rope_theta=10000.0),
     (plain(10000, 64), mpf(1))),
]
print("// Made by rope_vectors.py: frequencies by the published formulas, worked out in 60 digits.")
print("// clang-format off")
print("static const struct rope_vector {")
print("    const char *name;")
print("    uint32_t head_dim, window, context;")
print("    const char *fields, *parameters; // of config.json, of its rope_parameters")
print("    double factor;")
print("    uint32_t n;")
print("    double inv_freq[64];")
print("} ROPE_VECTORS[] = {")
for name, head, window, context, fields, text, (freq, factor) in cases:
    quoted = text.replace(" ", "").replace('"', '\\"')
    parts = [quoted[i:i + 96] for i in range(0, len(quoted), 96)]
    for i in range(len(parts) - 1):  # an escape is not cut in two
        while parts[i].endswith("\\"):
            parts[i], parts[i + 1] = parts[i][:-1], "\\" + parts[i + 1]
    fields = fields.replace('"', '\\"')
    print('    {"%s", %d, %d, %d, "%s",' % (name, head, window, context, fields))
    for p in parts:
        print('     "%s"%s' % (p, "," if p is parts[-1] else ""))
    print("     %s, %d, {" % (mp.nstr(factor, 17), len(freq)))
    for i in range(0, len(freq), 5):
        print("      " + ", ".join(mp.nstr(f, 17) for f in freq[i:i + 5]) + ",")
    print("     }},")
print("};")
print("// clang-format on")
print("// Growth of queries at a position: beta 0.1 over 16384.")
print("static const struct {")
print("    uint32_t pos;")
print("    double growth;")
print("} GROWTH_VECTORS[] = {")
for pos in (0, 1, 16383, 16384, 32767, 32768, 100000, 262143, 1048575):
    print("    {%d, %s}," % (pos, mp.nstr(1 + log(1 + pos // 16384) / 10, 17)))
print("};")
