# SPDX-License-Identifier: Apache-2.0
# A tour of kvtool in Python, in cells (Jupyter, VS Code and Spyder run "# %%" cells one by one). slot0.bin is a state
# that llama.cpp's server saved; trace holds queries of another run. A test runs the whole file.

# %% What is in the file? Only its header is read.
import numpy as np

import kvtool

snapshot = kvtool.open("slot0.bin", kv_heads=4)
print(snapshot, "by", snapshot.engine)
for layer in snapshot.layers[:2]:
    print(layer, "V:", layer.v_info)

# %% Values are views of the mapped file: a slice reads the pages that it touches.
k = snapshot.layers[0].k
print(k.shape, k.dtype, "writeable:", k.flags.writeable)
print("largest |K| of the first 16 tokens:", np.abs(k[:16].astype(np.float32)).max())

# %% What compresses in it, and why?
report = kvtool.analyze(snapshot)
print({key: value for key, value in report["summary"].items() if isinstance(value, (int, float))})

# %% An archive restores the file byte for byte, and proves it.
document = kvtool.compress(snapshot, "slot0.kvz", level="high", force=True)
print(f"{document['inputs'][0]['bytes']} bytes to {document['archive_bytes']}, {document['ratio']:.3f}x")
assert kvtool.verify("slot0.kvz", against="slot0.bin")["verdict"] == "identical"
print("the very same bytes")

# %% One page in memory, as an engine stores it under a key.
page = np.ascontiguousarray(k[:64])
key = kvtool.hash128("stories260K, layer 0, K, tokens 0 to 63")
frame = kvtool.encode(page, context=key, role="k")
info = kvtool.frame_info(frame)
print(f"{page.nbytes} bytes to {len(frame)}: {info['tokens']} x {info['heads']} x {info['head_dim']} {info['dtype']}")
assert (kvtool.decode_array(frame, context=key) == page).all()

# %% A page of another model is a miss, never wrong values.
try:
    kvtool.decode(frame, context=kvtool.hash128("another model"))
except kvtool.Error as error:
    print(error, "->", kvtool.explain(error.finding)["summary"])

# %% Would eviction hurt? Two policies keep half of the cache of a recorded run.
traced = kvtool.open("trace/kjv3m.seq0.bin", kv_heads=2)
queries = {layer: np.load(f"trace/kjv3m-L{layer}-Q.npy") for layer in (0, 3)}
replay = kvtool.replay_evict(traced, queries=queries, prompt_tokens=64, policy=["h2o", "streaming"], budget=0.5)
for run in replay["runs"]:
    print(run["policy"], run["ratio"] if "ratio" in run else "")

# %% The plan of one policy lists the positions that stay.
plan = kvtool.replay_evict(traced, queries=queries, prompt_tokens=64, policy="h2o", budget=0.5)["plan"]
begin, count = plan["events"][0]["kept"].T
print("after token", plan["events"][0]["token"], "layer 0 keeps", count.sum(), "of 64 positions")
