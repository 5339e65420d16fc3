# SPDX-License-Identifier: Apache-2.0
"""Checks that scripts/bench/peers.py counts the same sizes for the levels of kvtool as bench does."""
import json

peers, bench = json.load(open("peers.json")), json.load(open("bench.json"))["results"][0]
sizes = lambda report: {one["name"]: [one[part]["stored_bytes"] for part in "kv"] for one in report["contestants"]}
own, all_of_them = sizes(bench), sizes(peers)
assert peers["chunks"] == bench["chunks"] and own.items() <= all_of_them.items(), (own, all_of_them)
assert "byte planes + zstd -3" in all_of_them, all_of_them
