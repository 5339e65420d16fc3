# Every document of one run fits its schema; the plan and the snapshot agree with the report.
flags="--prompt-tokens 64 --block-tokens 8 --sink 4 --recent 16 --trigger-min 64 --layer-start 1"
"$KVTOOL" replay-h2o "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" $flags --detail --json \
  --json-out report.json --jsonl events.jsonl --plan-out plan.json --snapshot-out kept.safetensors \
  --html-out page.html -q > stdout.json
cmp <(jq -S . stdout.json) <(jq -S . report.json) && echo "one document"
$VALIDATE < report.json
$VALIDATE < plan.json
$VALIDATE < events.jsonl
jq -c '.results[0] | [.runs[0].layers[] | .kept_tokens]' report.json
jq -c '[.events[:5][] | [.token, .kept]]' plan.json
jq -c '.results[0] | .snapshot_out.rows_checked' report.json
"$KVTOOL" inspect kept.safetensors --json | jq -c '.results[0] | [.layers[].k.tokens]'
grep -c '<svg' page.html
if grep -E '<script .|<link|https?://[^w]|@import|url\(' page.html; then echo "the page reaches out"; fi
"$KVTOOL" trace inspect "$TESTDATA/trace/s260k" --json | $VALIDATE
