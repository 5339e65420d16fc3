# Sizes of every level, times left out; a page; peers that are built in; what cannot be measured.
state=$TESTDATA/llamacpp/states/s260k-v050-bf16.seq0.bin
"$KVTOOL" bench "$state" --deterministic --rounds 1 --kv-heads 4 | cut -d: -f2-
"$KVTOOL" bench "$state" --rounds 2 --peers --chunk 16KiB --json --html-out page.html > report.json 2> peers.err
$VALIDATE < report.json
"$PYTHON" - <<'END'
import json
report = json.load(open("report.json"))
names = [one["name"] for one in report["contestants"]]
print(report["chunks"], names[:5], "zstd -3" in names, "memcpy" in names)
for one in report["contestants"]:
    assert one["encode"]["fastest_mb_per_s"] >= one["encode"]["median_mb_per_s"] > 0, one
    assert one["k"]["raw_bytes"] == one["v"]["raw_bytes"] == 81920, one
    assert one["rounds"] == 2 and one["v"]["decode"]["fastest_mb_per_s"] > 0, one
worst = {one["name"]: one["k"]["worst_chunk_to_compat"] for one in report["contestants"]}
assert worst["compat"] == 1 and worst["default"] < 1.001 and worst["memcpy"] > 1, worst
END
grep -c '<svg' page.html
"$KVTOOL" bench "$state" --deterministic --rounds 1 --levels default,high --json > few.json
"$PYTHON" -c 'import json; print([one["name"] for one in json.load(open("few.json"))["contestants"]])'
"$KVTOOL" bench "$state" --levels best 2> /dev/null || echo "exit $?"
"$KVTOOL" bench "$state" --rounds 1 --html-out page.html > table 2>&1 || echo "exit $?"
grep -c "page.html" table
"$KVTOOL" bench "$state" --chunk 1GiB || echo "exit $?"
