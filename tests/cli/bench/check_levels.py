# SPDX-License-Identifier: Apache-2.0
"""Checks the figures of report.json that do not depend on the machine."""
import json

report = json.load(open("report.json"))["results"][0]
names = [one["name"] for one in report["contestants"]]
print(report["chunks"], names[:5], "zstd -3" in names, "memcpy" in names)
for one in report["contestants"]:
    assert one["encode"]["fastest_mb_per_s"] >= one["encode"]["median_mb_per_s"] > 0, one
    assert one["k"]["raw_bytes"] == one["v"]["raw_bytes"] == 81920, one
    assert one["rounds"] == 2 and one["v"]["decode"]["fastest_mb_per_s"] > 0, one
worst = {one["name"]: one["k"]["worst_chunk_to_compat"] for one in report["contestants"]}
assert worst["compat"] == 1 and worst["default"] < 1.001 and worst["memcpy"] > 1, worst
