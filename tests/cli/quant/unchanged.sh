# Types that convert none of so few tokens say so: they lose nothing because they do nothing.
trace="--trace $TESTDATA/trace/kjv3m"
# Replaces the checkout's path before lines are cut, so that its length does not change them.
narrow() { sed "s,$TESTDATA/,," | cut -c1-46; }
"$KVTOOL" replay-quant "$TESTDATA/trace/kjv3m.seq0.bin" $trace --k kivi2,q8_0 --v kivi2 --html-out page.html | narrow
grep -c "kivi2: K of all 96 tokens" page.html
grep -o "q8_0 / kivi2\|kivi2 / kivi2" page.html | sort | uniq -c
"$KVTOOL" replay-quant "$TESTDATA/trace/kjv3m.seq0.bin" $trace --k q8_0 --v q8_0 --keep-last 96 -q | narrow
# A rule is not run, instead of passed, if a type converts none of the tokens.
for type in kivi2 q8_0; do
  jq -n --arg type $type --arg state "$TESTDATA/trace/kjv3m.seq0.bin" --arg trace "$TESTDATA/trace/kjv3m" \
    '{schema: "kvtool.gate-config/1", cases: [{name: $type, snapshot: $state, trace: $trace, quant: {k: $type, v: $type},
      rules: [{metric: "quant.output_error", op: "<=", limit: 0.5}]}]}' > gate.json
  "$KVTOOL" gate gate.json > gate.txt || echo "exit $?"
  grep "quant.output_error" gate.txt
done
