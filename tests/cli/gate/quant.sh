# A rule limits the loss of a quantised cache.
config() {
  cat > gate.json <<EOF
{"schema": "kvtool.gate-config/1",
 "defaults": {"snapshot": "$TESTDATA/trace/kjv3m.seq0.bin", "trace": "$TESTDATA/trace/kjv3m", "prompt_tokens": 48},
 "cases": [$1]}
EOF
  $VALIDATE < gate.json
}
gate() { status=0; "$KVTOOL" gate gate.json --deterministic -q --json > summary.json || status=$?; echo $status; }
config '{"name": "8 bits", "quant": {"k": "q8_0", "v": "q8_0"}, "rules": [{"metric": "quant.output_error", "op": "<=", "limit": 0.02}, {"metric": "quant.ratio", "op": ">=", "limit": 1.3}]}'
gate
$VALIDATE < summary.json
jq -c '[.results[0].cases[0] | .mode, .status, .rules[].status]' summary.json
config '{"name": "4 bits of K", "quant": {"k": "q4_0"}, "rules": [{"metric": "quant.output_error.worst", "op": "<=", "limit": 0.02}]}'
gate
jq -r '.results[0].cases[0].reason | sub("[0-9.]+ >"; "X >")' summary.json
# replay-quant gives the same figures.
"$KVTOOL" replay-quant "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/kjv3m" --prompt-tokens 48 --k q4_0 --v f16 --json -q > quant.json 2> /dev/null
jq -n --slurpfile gate summary.json --slurpfile quant quant.json -c '($gate[0].results[0].cases[0].rules[0].value - $quant[0].results[0].runs[1].worst_output_error) | fabs < 1e-9'
# Without gradients the report has no figure in nats.
config '{"name": "nats", "quant": {"k": "q8_0", "v": "q8_0"}, "rules": [{"metric": "quant.predicted_kl", "op": "<=", "limit": 0.02, "required": true}]}'
gate
jq -r '.results[0].cases[0].reason' summary.json
config '{"name": "shape", "quant": {"v": "quanto4"}, "trace": "nowhere", "rules": [{"metric": "quant.ratio", "op": ">=", "limit": 1}]}'
gate
for case in '{"name": "a", "quant": {"k": "q9"}}' '{"name": "a", "quant": "q8_0"}' '{"name": "a", "quant": {"x": "q8_0"}}' '{"name": "a", "mode": "quant"}'; do
  echo "{\"schema\": \"kvtool.gate-config/1\", \"cases\": [$case]}" > gate.json
  gate
done
