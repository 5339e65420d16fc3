#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the compressor's MLP in torch and in kv_bench, for the same shapes.

Usage: torch_mlp.py [--kv-bench build/release/bin/kv_bench] [--rounds 15]
One thread, process CPU time, fastest round, both in turn. Needs python3-torch.
"""
import argparse
import json
import subprocess
import time

import torch

SHAPES = {
    "B11_mlp_16384x512-256-256-128_f32": (16384, 512, 256, 256, 128),
    "mlp_16384x640-128-128-128_f32": (16384, 640, 128, 128, 128),
}


def torch_seconds(shape, rounds):
    rows, *sizes = shape
    layers = []
    for fan_in, fan_out in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU()]
    mlp = torch.nn.Sequential(*layers[:-1]).eval()
    x = torch.randn(rows, sizes[0])
    best = float("inf")
    with torch.no_grad():
        for _ in range(rounds):
            begin = time.process_time()
            mlp(x)
            best = min(best, time.process_time() - begin)
    return best


def own_seconds(kv_bench, name):
    done = subprocess.run([kv_bench, f"--benchmark_filter=^{name}", "--benchmark_format=json"],
                          check=True, capture_output=True, text=True)
    return min(run["own_ms"] for run in json.loads(done.stdout)["benchmarks"]) / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kv-bench", default="build/release/bin/kv_bench")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, shape in SHAPES.items():
        peer = own = float("inf")
        for _ in range(3):
            peer = min(peer, torch_seconds(shape, args.rounds))
            own = min(own, own_seconds(args.kv_bench, name))
        print(f"{name}: kvtool {own * 1e3:.1f} ms, torch {torch.__version__} {peer * 1e3:.1f} ms, "
              f"{peer / own:.2f}x")


if __name__ == "__main__":
    main()
