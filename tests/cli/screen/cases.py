# SPDX-License-Identifier: Apache-2.0
"""A small call of every command, and of every verb of a command."""
import os
import pathlib

DATA = pathlib.Path(os.environ["TESTDATA"])
STATE, TRACE = str(DATA / "trace/s260k.seq0.bin"), str(DATA / "trace/s260k")
BLEND, MLP = DATA / "golden/blend/replay", DATA / "golden/infinilm"
REPLAY = [STATE, "--trace", TRACE, "--prompt-tokens", "64"]

# Files that other cases read are made first: an archive, a container, a plan, a summary.
CALLS = [
    ["compress", STATE, "-o", "a.kvz", "-f"],
    ["frame", "encode", "--dtype", "f16", STATE, "-o", "a.gear", "-f"],
    ["gate", str(DATA / "gate/pass.json"), "--case", "runtime_full", "-o", "summary.json", "-f"],
    ["replay", "evict", *REPLAY, "--policy", "streaming", "--budget", "0.5", "--plan-out", "plan.json", "-f"],
    ["inspect", STATE, "--stats", "--kv-heads", "4"],
    ["analyze", STATE, "--kv-heads", "4"],
    ["decompress", "a.kvz", "-o", "back.bin", "-f"],
    ["verify", "a.kvz", "--against", STATE],
    ["convert", STATE, "--kv-heads", "4", "--to", "npz", "-o", "a.npz", "-f"],
    ["diff", STATE, "a.npz", "--kv-heads", "4"],
    ["frame", "inspect", "a.gear"],
    ["frame", "decode", "--dtype", "f16", "a.gear", "-o", "a.raw", "-f"],
    ["bench", STATE, "--level", "fast", "--rounds", "1"],
    ["replay", "evict", *REPLAY, "--policy", "streaming,window,random", "--budget", "0.5,0.25"],
    ["advise", *REPLAY, "--max-error", "15%", "--policy", "streaming", "--budget", "0.5"],
    ["replay", "lossless", STATE, "--trace", TRACE, "--prompt-tokens", "96", "--mode", "store", "--h2o-trigger-min", "32"],
    ["replay", "blend", "--full", str(BLEND / "full.safetensors"), "--chunks",
     *(str(BLEND / f"chunk{i}.safetensors") for i in range(5)), "--layout", "thd", "--rope-base", "1e4",
     "--suffix-tokens", "6", "--curve-shares", "0.16,0.5"],
    ["replay", "quant", *REPLAY, "--k", "q8_0", "--v", "q8_0,q4_0", "--sample-rows", "20"],
    ["replay", "mlp", str(MLP / "dump_kv"), "--weights", str(MLP / "pth/full_f5_fp32_trainer.pth"), "--image-tokens", "11"],
    ["plan", "check", "plan.json", "--snapshot", STATE, "--kv-heads", "4"],
    ["trace", "inspect", TRACE],
    ["report", "summary.json"],
    ["weights", "inspect", str(MLP / "pth/full_f5_fp32_trainer.pth"), "--stats"],
    ["weights", "convert", str(MLP / "pth/full_f5_fp32_trainer.pth"), "-o", "a.bin", "-f"],
    ["weights", "verify", "a.bin"],
    ["weights", "diff", "a.bin", str(MLP / "pth/full_f5_fp32_trainer.pth")],
    ["formats"],
    ["targets"],
    ["explain"],
    ["explain", "KV1001"],
    ["doctor", STATE, "a.kvz"],
    ["train", STATE, "-o", "a.kvp", "-f"],
    ["inspect", "a.kvp"],
    ["store", "add", "store", STATE],
    ["store", "list", "store"],
    ["store", "stats", "store"],
    ["store", "verify", "store"],
    ["store", "get", "store", os.path.basename(STATE), "-o", "got.bin", "-f"],
    ["store", "prune", "store", "--keep-last", "1"],
    ["store", "gc", "store"],
    ["corpus", "make", "frames", "-o", "corpus.jsonl", "-f"],
    ["corpus", "check", "corpus.jsonl"],
    ["inspect", "--corpus", "corpus.jsonl", "--results", "results.jsonl", "-f"],
    ["merge", "results.jsonl"],
]
# Calls whose output is for programs and never wrapped.
PRODUCTS = [["schema"], ["schema", "inspect"], ["completion", "bash"], ["man", "inspect"]]
