# The gate must fail and name case, layer, head, tokens, and the command to reproduce it.
cd "$TESTDATA"
status=0
"$KVTOOL" gate gate/fail.json --deterministic --html-out "$OLDPWD/gate.html" --junit-out "$OLDPWD/gate.xml" || status=$?
echo "exit $status"
cd "$OLDPWD"
$PYTHON - << 'PY'
import xml.etree.ElementTree as tree
suites = tree.parse("gate.xml").getroot()
print({key: suites.get(key) for key in ("tests", "failures", "skipped")})
PY
grep -c "<svg" gate.html > /dev/null && echo "a page with pictures"
if grep -E '<script .|<link|https?://[^w]|@import|url\(' gate.html; then echo "the page reaches out"; fi
