# A failed gate is a verdict: exit 1, and the document names the rule. Figures that were not measured fail.
$PYTHON "$SHARED_SUITE/make.py" "$TESTDATA/golden/blend/replay"
run() { status=0; "$KVTOOL" replay-blend --full full.npz --chunks chunk?.npz --rope-base 1e4 --json -q "$@" > out.json || status=$?; $VALIDATE < out.json; echo "$status"; }
run --gate 'dev_v_remaining_frac@0.33.max<=0.5' --gate 'dev_k_remaining_frac@0.5.layer3<=0.5'
jq -c '.results[0] | .pass, [.gates[] | [.name, .op, .limit, .pass]]' out.json
run --gate 'dev_v_remaining_frac@0.05.min<=0.1'
jq -c '.results[0] | .pass' out.json
run --trace q.npz --gate 'attn_out_cos_mean@0.5.mean>=0.9'
run --gate 'attn_out_cos_mean@0.5.mean>=0.9'
jq -c '.results[0] | .gates[0].value' out.json
