#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes every kind of JSON document with a value that nests too deep for a recursive reader: nested_json.py FOLDER."""
import pathlib
import sys

FOLDER = pathlib.Path(sys.argv[1])


def nested_values(size):
    """Values of at most this many bytes."""
    arrays, objects = size // 2, size // 6 - 1
    return {"arrays": "[" * arrays + "]" * arrays, "open": "[" * size,
            "objects": '{"a":' * objects + "1" + "}" * objects}


SIZE, META_SIZE = 600_000, 60_000  # readers of metadata files accept at most 64 KiB
# file: text, in which DEEP stands for the value
DOCUMENTS = {
    "run/run.json": '{"schema":"kvtool.run/1","tokens":DEEP}',
    "schema/run.json": '{"schema":DEEP}',
    "gate.json": '{"schema":"kvtool.gate-config/1","defaults":DEEP,"cases":[{"name":DEEP}]}',
    "trace.jsonl": '{"kvtool.trace":"1","params":{"layers":DEEP}}\n',
    "call.jsonl": '{"kvtool.trace":"1","params":{"layers":1,"num_head":1,"kv_num_head":1,"head_dim":8}}\n'
                  '{"step":DEEP,"layer":0,"block_acc":[1]}\n',
    "plan.json": '{"schema":"kvtool.h2o-plan/1","source":{"file":DEEP},"events":[{"token":1,"x":DEEP}]}',
    "infinilm/meta.json": '{"seq_len_in":1,"seq_len_out":1,"layers":DEEP}',
    "infinilm/input_kv.bin": "no values",
    "mnn/layer_0/meta.json": '{"layer_id":DEEP,"kv_heads":1,"head_dim":1,"bytes_per_elem":2,"k_file":"k","seq_len":1}',
    "config.json": '{"num_attention_heads":DEEP}',
    "summary.json": '{"schema":"kvtool.gate/1","verdict":"pass","rows":[],"cases":DEEP}',
    "results.jsonl": '{"schema":"kvtool.results/1","tool":DEEP}\n',
    "corpus.jsonl": '{"schema":"kvtool.corpus/1","folder":DEEP,"entries":0}\n',
    "sensitivity.json": '{"schema":"kvtool.sensitivity/1","layers":DEEP}',
    "types.json": '{"schema":DEEP}',
}

for name, text in DOCUMENTS.items():
    for kind, value in nested_values(META_SIZE if "meta.json" in name else SIZE).items():
        file = FOLDER / kind / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("DEEP", value))
