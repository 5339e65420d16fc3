#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what a call of kvtool costs in Python: microseconds per call in the fastest of several rounds, and the
part of them that Context.stats() does not attribute to the library.

The object has 64 bytes, so that little is computed. Needs kvtool and NumPy.
"""
import math
import time

import numpy

import kvtool

ROUNDS, CALLS = 7, 20000
LIMIT_US = 5.0


def work_ns(context):
    stats = context.stats()
    return stats["encode_ns"] + stats["decode_ns"]


def main():
    page = numpy.zeros((2, 2, 8), numpy.uint16)
    key = kvtool.hash128("page")
    frame, room, out = kvtool.encode(page, context=key), bytearray(kvtool.bound(page.nbytes)), bytearray(page.nbytes)
    context = kvtool.Context("fast")
    pages, keys, frames, outs = [page] * 16, [key] * 16, [frame] * 16, [out] * 16
    calls = {
        "bound": (1, lambda: kvtool.bound(64)),
        "hash128": (1, lambda: kvtool.hash128(page)),
        "frame_info": (1, lambda: kvtool.frame_info(frame)),
        "encode": (1, lambda: context.encode(page, context=key)),
        "encode, out": (1, lambda: context.encode(page, context=key, out=room)),
        "decode": (1, lambda: context.decode(frame, context=key)),
        "decode, out": (1, lambda: context.decode(frame, context=key, out=out)),
        "encode_batch, each of 16": (16, lambda: context.encode_batch(pages, contexts=keys)),
        "decode_batch, each of 16": (16, lambda: context.decode_batch(frames, contexts=keys, outs=outs)),
    }
    try:
        import ml_dtypes

        bf16 = page.view(ml_dtypes.bfloat16)
        calls["encode of ml_dtypes"] = (1, lambda: context.encode(bf16, context=key))
        calls["decode to ml_dtypes"] = (1, lambda: context.decode(frame, context=key, out=bf16))
    except ImportError:
        pass
    slow = 0
    print(f"{'':26} {'call':>8} {'overhead':>9}")
    for name, (objects, call) in calls.items():
        best = overhead = math.inf
        for _ in range(ROUNDS):
            before, begin = work_ns(context), time.perf_counter_ns()
            for _ in range(CALLS // objects):
                call()
            took = time.perf_counter_ns() - begin
            count = CALLS // objects * objects * 1000
            best, overhead = min(best, took / count), min(overhead, (took - work_ns(context) + before) / count)
        slow += overhead > LIMIT_US
        print(f"{name:26} {best:5.2f} us {overhead:6.2f} us")
    print(f"{slow} above {LIMIT_US} us")


if __name__ == "__main__":
    main()
