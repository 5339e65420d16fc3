# The summary that MNN's test suite wrote becomes a page and JUnit.
s="$TESTDATA/golden/mnn/gate/suite/summary.json"
[ -f "$s" ] || exit 0
cp "$s" summary.json
"$KVTOOL" report summary.json --html-out page.html --junit-out gate.xml > /dev/null
grep -c '<b>Fail</b>' page.html
if grep -E '<script .|<link|https?://[^w]|@import|url\(' page.html; then echo "the page reaches out"; fi
"$PYTHON" "$SHARED_SUITE/check_pages.py"
