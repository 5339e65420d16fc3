# Packages and levels on the same chunks: sizes of kvtool's own as bench says them; what zstd makes is given back.
state=$TESTDATA/llamacpp/states/s260k-v050-bf16.seq0.bin
if ! "$PYTHON" -c 'import numpy, zstandard' 2> /dev/null; then
  echo "skipped: no numpy or zstandard"
  exit 0
fi
"$PYTHON" "$SCRIPTS/bench_peers.py" "$KVTOOL" "$state" --chunk 8KiB --rounds 1 --json-out peers.json > table 2> left-out
"$KVTOOL" bench "$state" --chunk 8KiB --rounds 1 --json > bench.json
"$PYTHON" - <<'END'
import json
peers, bench = json.load(open("peers.json")), json.load(open("bench.json"))
sizes = lambda report: {one["name"]: [one[part]["stored_bytes"] for part in "kv"] for one in report["contestants"]}
own, all_of_them = sizes(bench), sizes(peers)
assert peers["chunks"] == bench["chunks"] and own.items() <= all_of_them.items(), (own, all_of_them)
assert "byte planes + zstd -3" in all_of_them, all_of_them
END
grep -c '^K: max against the smallest peer' table
