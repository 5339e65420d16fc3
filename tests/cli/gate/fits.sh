# Without a config a cache is judged by the config that --init would write for it: a sound one passes, one that lost
# content or contains NaN fails, and --init writes the same limits.
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" run
for what in nan short; do $PYTHON "$SHARED_SUITE/damage_run.py" "$KVTOOL" run $what $what; done
gate() { status=0; "$KVTOOL" gate "$@" --deterministic 2> err || status=$?; echo "exit $status"; }
gate run | tee said
command=$(sed -n 's/.*to keep them: //p' said)
eval "\"$KVTOOL\" ${command#kvtool }"
gate gate.json | diff - <(sed '/to keep them/d' said) && echo "the same verdict"
s=$TESTDATA/trace/s260k.seq0.bin
gate --snapshot "$s" --trace "$TESTDATA/trace/s260k" --kv-heads 4 --prompt-tokens 64 --json -q > out.json
sed '$d' out.json | $VALIDATE
jq -c '.results[0] | .verdict, [.cases[] | [.name, .status]]' <(sed '$d' out.json)
gate --snapshot "$s" --kv-heads 4 | grep -E 'gate|exit'
for fault in "run --inject-fault content" nan; do
  gate $fault --json -q > out.json; tail -1 out.json
  jq -r '[.results[0].cases[].rules[] | select(.status == "fail") | .word // .metric] | unique[]' <(sed '$d' out.json)
done
# A failing case is named, and can be judged again alone.
gate run --inject-fault content > said; grep "again:" said
gate run --case run-evicted --inject-fault content | grep -E '^gate|^run|exit'
gate short; cat err
gate run --case stored; cat err
gate run --prompt-tokens 64,96; cat err
gate run --decode-tokens 9; cat err
