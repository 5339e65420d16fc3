# A failed case is shown as failed, whatever the file says about the whole or the case.
"$KVTOOL" gate "$TESTDATA/gate/fail.json" --deterministic -qq -o summary.json > /dev/null || echo "exit $?"
jq '.verdict = "pass" | .overall_pass = true' summary.json > whole.json
jq '.verdict = "pass" | .overall_pass = true | .cases[].status = "pass"' summary.json > cases.json
for file in whole cases; do
  "$KVTOOL" report $file.json --html-out $file.html --junit-out $file.xml | cut -c1-60
  grep -o '<b>Fail</b>' $file.html
  grep -o 'failures="[0-9]*"' $file.xml | sed -n 1p
done
