#!/usr/bin/env python3
"""Sums up what cpu_peer.sh measured: cpu_peer.py RAW FILE...

A line of RAW is `measure side value file`. Of each file and measure it prints the medians of both sides, and the median of
the ratios of the pairs, above 1 where Loom is better: a machine that becomes slower and faster meanwhile changes the former
more than the latter. A spread is the range of the middle half, in per cent of the median. All of it comes once as a line
of a table, which begins with a space, and once with commas: file, measure, pairs, and the same figures.
"""
import os
import statistics
import sys


def spread_pct(values):
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return 100 * (high - low) / statistics.median(values)


def main():
    raw, files = sys.argv[1], sys.argv[2:]
    found = {}
    with open(raw) as lines:
        for line in lines:
            measure, side, value, file = line.rstrip("\n").split(" ", 3)
            found.setdefault((file, measure), {"loom": [], "peer": []})[side].append(float(value))
    print(" %-32s %-18s %5s %10s %7s %10s %7s %6s %7s" %
          ("file", "measure", "pairs", "loom", "spread", "peer", "spread", "ratio", "spread"))
    for (file, measure), sides in found.items():
        loom, peer = sides["loom"], sides["peer"]
        if file not in files or not loom or not peer:
            continue
        # Of times the smaller is better.
        ratios = [b / a if "_ms_" in measure else a / b for a, b in zip(loom, peer)]
        name = "/".join(file.split(os.sep)[-2:])
        figures = [f(x) for x in (loom, peer, ratios) for f in (statistics.median, spread_pct)]
        print(" %-32s %-18s %5d %10.2f %6.1f%% %10.2f %6.1f%% %6.2f %6.1f%%" % (name, measure, len(ratios), *figures))
        print("%s,%s,%d,%.2f,%.1f,%.2f,%.1f,%.3f,%.1f" % (name, measure, len(ratios), *figures))


if __name__ == "__main__":
    sys.exit(main())
