# A first config fits its data: it passes for them and for an equal recording, and fails for damaged and for worse
# ones.
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" run
for what in same again nan zero worse short; do $PYTHON "$SHARED_SUITE/damage_run.py" "$KVTOOL" run $what $what; done
mkdir ci
"$KVTOOL" gate --init same -o ci/gate.json
sed -E 's|^ *//.*||' ci/gate.json | $VALIDATE
grep -E '"(snapshot|evict_target_ratio|metric": "measured_ratio)"|// measured .*; over|expected_cases' ci/gate.json
judge() { # which run
  sed "s|\"../same\"|\"../$1\"|" ci/gate.json > ci/other.json
  status=0
  "$KVTOOL" gate ci/other.json --deterministic --json -q > out.json 2> err.txt || status=$?
  echo "$1: exit $status"
  [ $status != 1 ] || jq -r '[.results[0].cases[].rules[] | select(.status == "fail") | "  " + (.word // .metric)] | unique[]' out.json
}
for what in same again nan zero worse short; do judge $what; done
mv same gone
judge same
mv gone same
# Several recordings with the same settings show the noise; other settings get their own cases.
"$KVTOOL" gate --init same again "$TESTDATA/trace/s260k.seq0.bin" --kv-heads 4 | grep -E '"name"|recordings' | sed 's/.*; 2 recordings.*/  of 2 recordings/' | sort | uniq -c
# The config on standard output, from a snapshot and its trace, is the same every time.
"$KVTOOL" gate --init "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --kv-heads 4 --prompt-tokens 64 -T 1 > one.json
"$KVTOOL" gate --init "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --kv-heads 4 --prompt-tokens 64 -T 3 | cmp - one.json && echo "equal"
"$KVTOOL" gate one.json --deterministic -q > /dev/null && echo "pass"
no() { status=0; "$KVTOOL" gate --init "$@" || status=$?; echo "exit $status"; }
no
no same -o ci/gate.json
no same --baseline out.json
no same again --trace run/trace
no same --prompt-tokens 192
no same --prompt-tokens 64,96
no missing
status=0; "$KVTOOL" gate ci/gate.json same || status=$?; echo "exit $status"
