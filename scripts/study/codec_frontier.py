#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the frontier of lossless codecs on real caches: docs/codec/frontier.svg and its table, from the figures of
peers.py.

  codec_frontier.py measure KVTOOL CACHE... --out DIR     runs peers.py on each cache, DIR/NAME.json
  codec_frontier.py draw DIR/f16.json DIR/bf16.json --svg FILE    prints the tables of docs/codec.md and draws

Each panel plots ratio over speed. K and V are rows, encoding and decoding of each cache are columns. Speeds are the
fastest rounds, CPU time of one thread.
"""
import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
LEVELS = ("compat", "fast", "default", "high", "max")
WIDTH, HEIGHT, LEFT, TOP = 300, 230, 56, 48
OURS, OTHERS = "#1b6ca8", "#8a8a8a"


def measure(options):
    for cache in options.caches:
        out = pathlib.Path(options.out) / (pathlib.Path(cache).stem + ".json")
        subprocess.run([sys.executable, HERE.parent / "bench/peers.py", options.kvtool, cache, "--slow", "--rounds", str(options.rounds),
                        "--most", options.most, "--chunk", options.chunk, "--json-out", out], check=True)


def points(document, part, way):
    for one in document["contestants"]:
        if one[part]["raw_bytes"]:
            yield one["name"], one[part][way]["fastest_mb_per_s"], one[part]["ratio"], one["name"] in LEVELS


def nice(value):
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def panel(document, part, way, x, y):
    """Returns one panel as lines of SVG."""
    import math
    some = sorted(points(document, part, way), key=lambda point: point[1])
    low = math.log10(min(speed for _, speed, _, _ in some)) - 0.15
    high = math.log10(max(speed for _, speed, _, _ in some)) + 0.35
    top, bottom = max(r for _, _, r, _ in some) * 1.02, min(0.98, min(r for _, _, r, _ in some))

    def place(speed, ratio):
        return (x + LEFT + (WIDTH - LEFT - 14) * (math.log10(speed) - low) / (high - low),
                y + TOP + (HEIGHT - TOP - 34) * (top - ratio) / (top - bottom))

    lines = [f'<rect x="{x + LEFT}" y="{y + TOP}" width="{WIDTH - LEFT - 14}" height="{HEIGHT - TOP - 34}" fill="none" stroke="#ccc"/>',
             f'<text x="{x + LEFT}" y="{y + TOP - 8}" font-weight="bold">{document["dtype"].lower()} {part.upper()}, {way}</text>']
    for power in range(math.ceil(low), math.floor(high) + 1):
        at, _ = place(10 ** power, top)
        lines.append(f'<line x1="{at:.1f}" y1="{y + TOP}" x2="{at:.1f}" y2="{y + HEIGHT - 34}" stroke="#eee"/>')
        lines.append(f'<text x="{at:.1f}" y="{y + HEIGHT - 20}" text-anchor="middle" fill="#555">{10 ** power:g}</text>')
    step = 0.1 if top - bottom < 0.8 else 0.2
    ratio = math.ceil(bottom / step) * step
    while ratio < top:
        _, at = place(10 ** low, ratio)
        lines.append(f'<text x="{x + LEFT - 6}" y="{at + 3:.1f}" text-anchor="end" fill="#555">{ratio:.1f}</text>')
        ratio += step
    own = [place(speed, r) for _, speed, r, ours in some if ours]
    lines.append(f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in own)}" fill="none" stroke="{OURS}" stroke-opacity="0.4"/>')
    for name, speed, r, ours in some:
        a, b = place(speed, r)
        colour = OURS if ours else OTHERS
        lines.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{3.2 if ours else 2.4}" fill="{colour}"><title>{name}: {r:.3f}x, {nice(speed)} MB/s'
                     '</title></circle>')
        if ours or name in ("zipnn", "zstd -19", "zstd -3", "openzl floats", "lz4"):
            lines.append(f'<text x="{a + 5:.1f}" y="{b - 4:.1f}" fill="{colour}">{name}</text>')
    return lines


def draw(options):
    documents = [json.loads(pathlib.Path(path).read_text()) for path in options.figures]
    columns = [(document, way) for document in documents for way in ("encode", "decode")]
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(columns)}" height="{2 * HEIGHT + 20}" '
             'font-family="sans-serif" font-size="10">', '<rect width="100%" height="100%" fill="white"/>']
    for row, part in enumerate(("k", "v")):
        for column, (document, way) in enumerate(columns):
            lines += panel(document, part, way, column * WIDTH, row * HEIGHT)
    lines.append(f'<text x="{LEFT}" y="{2 * HEIGHT + 10}" fill="#555">ratio over MB/s of one thread (logarithmic); higher and further '
                 'right is better</text></svg>')
    if options.svg:
        pathlib.Path(options.svg).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(options.svg).write_text("\n".join(lines) + "\n")
    for document in documents:
        print(f"| {document['dtype'].lower()}: ratio; encode, decode MB/s | K | V |\n|---|---|---|")
        for one in document["contestants"]:
            cells = [f"{one[part]['ratio']:.3f}; {nice(one[part]['encode']['fastest_mb_per_s'])}, "
                     f"{nice(one[part]['decode']['fastest_mb_per_s'])}" for part in ("k", "v")]
            name = f"`{one['name']}`" if one["name"] in LEVELS else one["name"]
            print(f"| {name} | {' | '.join(cells)} |")
        print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("measure")
    verb.add_argument("kvtool")
    verb.add_argument("caches", nargs="+")
    verb.add_argument("--out", default=".")
    verb.add_argument("--rounds", type=int, default=5)
    verb.add_argument("--most", default="16MiB")
    verb.add_argument("--chunk", default="1MiB")
    verb = verbs.add_parser("draw")
    verb.add_argument("figures", nargs="+")
    verb.add_argument("--svg")
    options = parser.parse_args()
    measure(options) if options.verb == "measure" else draw(options)


if __name__ == "__main__":
    main()
