#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the SQL of docs/scale.md with DuckDB over the results of three shards: its ratios by layer must equal those of
kvtool merge.

Usage: parquet_test.py KVTOOL [--python PYTHON]

PYTHON has duckdb (default: the one that runs this). Exits with 77 and the reason if it does not.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/scale"))


def recipe():
    """Returns the SQL blocks of the page, in their order."""
    return re.findall(r"^```sql\n(.*?)^```", (ROOT / "docs/scale.md").read_text(), re.MULTILINE | re.DOTALL)


def compare(kvtool, work):
    import duckdb
    import small_caches

    os.chdir(work)
    small_caches.make("dumps", 12)
    pathlib.Path("dumps/000/damaged.safetensors").write_bytes(small_caches.content(99, 64)[:5000])
    pathlib.Path("results").mkdir()
    subprocess.run([kvtool, "corpus", "make", "dumps", "-o", "corpus.jsonl", "-q"], check=True)
    for i in range(3):
        ended = subprocess.run([kvtool, "analyze", "--corpus", "corpus.jsonl", "--shard", f"{i}/3", "--keep-going", "-q", "--results",
                                f"results/{i}.jsonl"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert ended.returncode in (0, 3), ended.returncode
    subprocess.run([kvtool, "merge", *pathlib.Path("results").iterdir(), "-o", "merged.json", "-q"], stdout=subprocess.DEVNULL)
    # One line is of a repeated input, and a kill truncated another.
    first = pathlib.Path("results/0.jsonl")
    lines = first.read_text().split("\n")
    tried = json.loads(lines[1])
    tried.update(exit_code=4, result=None)
    first.write_text("\n".join([lines[0], json.dumps(tried), *lines[1:-1], lines[-2][:300]]))
    blocks = recipe()
    assert len(blocks) == 3, len(blocks)
    for block in blocks[:2]:
        duckdb.sql(block)
    inputs = duckdb.sql("SELECT exit_code, count(*) FROM 'inputs.parquet' GROUP BY exit_code ORDER BY exit_code").fetchall()
    assert inputs == [(0, 12), (3, 1)], inputs
    said = {(layer, part): (count, ratio) for layer, part, count, ratio in duckdb.sql(blocks[2]).fetchall()}
    merged = json.loads(pathlib.Path("merged.json").read_text())
    figures = {(one["layer"], one["part"]): (one["count"], one["weighted"]) for one in merged["results"][0]["figures"]
               if one["layer"] is not None and one["figure"] == "ratio"}
    assert figures and said.keys() == figures.keys(), (said, figures)
    for key, (count, ratio) in figures.items():
        assert said[key][0] == count and abs(said[key][1] - ratio) < 1e-12 * ratio, (key, said[key], ratio)
    print(f"duckdb {duckdb.__version__}: {len(figures)} ratios as merge has them")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kvtool")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    if options.python != sys.executable:
        sys.exit(subprocess.run([options.python, __file__, options.kvtool]).returncode)
    try:
        import duckdb  # noqa: F401
        import numpy  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error}; pip install duckdb numpy")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        compare(pathlib.Path(options.kvtool).resolve(), folder)
        os.chdir("/")


if __name__ == "__main__":
    main()
