# Prints sizes at every level without times, a page, built-in peers, and peers that cannot be measured.
state=$TESTDATA/llamacpp/states/s260k-v050-bf16.seq0.bin
"$KVTOOL" bench "$state" --deterministic --rounds 1 --kv-heads 4 | cut -d: -f2-
"$KVTOOL" bench "$state" --rounds 2 --peers --chunk 16KiB --json --html-out page.html > report.json 2> peers.err
$VALIDATE < report.json
"$PYTHON" "$SHARED_SUITE/check_levels.py"
grep -c '<svg' page.html
"$KVTOOL" bench "$state" --deterministic --rounds 1 --levels default,high --json > few.json
"$PYTHON" -c 'import json; print([one["name"] for one in json.load(open("few.json"))["results"][0]["contestants"]])'
"$KVTOOL" bench "$state" --levels best 2> /dev/null || echo "exit $?"
"$KVTOOL" bench "$state" --rounds 1 --html-out page.html > table 2>&1 || echo "exit $?"
grep -c "page.html" table
"$KVTOOL" bench "$state" --chunk 1GiB || echo "exit $?"
