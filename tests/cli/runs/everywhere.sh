# Every command accepts a recorded run in place of a snapshot, with its heads, RoPE and trace.
$PYTHON "$SHARED_SUITE/made_run.py" "$TESTDATA" run
"$KVTOOL" inspect run
"$KVTOOL" inspect run/ --json | tee inspect.json | $VALIDATE > /dev/null
jq -c '.results[0] | [.run.tokens, .run.nll, .run.rope.style, .run.files.trace, .layers[0].k.kv_heads]' inspect.json
"$KVTOOL" trace inspect run | sed -n 1p
# The run's snapshot, with flags in place of run.json, gives the same result.
flags="--kv-heads 4 --trace run/trace"
same() { diff <(jq -S '.results' a.json) <(jq -S '.results' b.json) && echo same; }
"$KVTOOL" replay-h2o run --policy streaming,h2o --target-ratio 2,4 --json > a.json
"$KVTOOL" replay-h2o run/snapshot.bin $flags --policy streaming,h2o --target-ratio 2,4 --json > b.json; same
jq -c '.results[0] | [.runs[].predicted_kl | [.method, .samples, .rows]] | unique' a.json
"$KVTOOL" replay-h2o run --policy streaming --re-rotate --json > a.json
"$KVTOOL" replay-h2o run/snapshot.bin $flags --policy streaming --re-rotate --rope-base 1e4 --rope-style gptj --json > b.json; same
"$KVTOOL" analyze run -q --json --deterministic > a.json
"$KVTOOL" analyze run/snapshot.bin --kv-heads 4 --rope-base 1e4 -q --json --deterministic > b.json; same
"$KVTOOL" replay-lossless run --mode store --deterministic -q --json > a.json
"$KVTOOL" replay-lossless run/snapshot.bin $flags --mode store --deterministic -q --json > b.json; same
"$KVTOOL" diff run run/snapshot.bin -q && echo equal
"$KVTOOL" compress run -o run.kvz -q && "$KVTOOL" verify run.kvz --against run | sed 's/:.*//'
"$KVTOOL" convert run --to npz -o run.npz -q && "$KVTOOL" diff run.npz run -q && echo equal
# Without gradients the run's layer weights are used.
rm run/trace/g.*
"$KVTOOL" replay-h2o run --policy window --json | jq -c '.results[0] | .runs[0].predicted_kl.method'
# The gate's six cases begin at the end of the run's prompt; a config may name a run, too.
status=0; "$KVTOOL" gate run -q --json > gate.json 2> /dev/null || status=$?; echo $status
jq -c '.results[0] | [.cases | length, .[0].snapshot, .[0].trace, .[0].rows[0].prompt_tokens]' gate.json
cat > gate.conf << 'END'
{"schema": "kvtool.gate-config/1", "defaults": {"snapshot": "run"}, "cases": [{"name": "one", "mode": "probe",
 "params": {"h2o_layer_start": 0, "h2o_block_tokens": 4, "h2o_sink_tokens": 4, "h2o_recent_tokens": 8, "h2o_trigger_min_tokens": 48},
 "rules": [{"metric": "attention_error.worst", "op": "<=", "limit": 2}]}]}
END
status=0; "$KVTOOL" gate gate.conf -q --json > gate.json || status=$?; echo $status
jq -c '.results[0] | .cases[0] | [.snapshot, .status]' gate.json
