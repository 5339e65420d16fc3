# Prints tables and documents of a recorded run, with its gradients, RoPE and layer weights.
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" run
"$KVTOOL" replay-quant run --k q8_0,kvquant4 --v q8_0,fp8_amax --rows 0
"$KVTOOL" replay-quant run --k q8_0 --v q4_0 --rows 20 --detail --json-out quant.json --html-out quant.html -q
$VALIDATE < quant.json
jq -c '.results[0] | .settings, .trace, [.runs[0] | .output_error, .attention_kl, .predicted_kl.nats, .flags]' quant.json
jq -c '.results[0] | [.runs[] | [.k, .v, .bytes_per_value, (.layers | length), (.layers[0].heads | length), .predicted_kl.method]]' quant.json
# Calibrated nats are shown with their band, next to the formula's value.
jq -c '.results[0].runs[3].predicted_kl | .nats / .expected_nats - .calibration.median | fabs < 1e-9' quant.json
jq -c '.results[0].runs[3].predicted_kl | [.low_nats < .expected_nats, .expected_nats < .high_nats, .calibration.median]' quant.json
grep -c '<svg' quant.html
# With --sensitivity layer weights predict the loss. Without them and gradients nothing does.
"$KVTOOL" replay-quant run --k q8_0 --v q8_0 --sensitivity run/sensitivity.json --json -q | jq -c '.results[0].runs[3].predicted_kl | [.method, .calibration.median]'
rm run/trace/g.*
"$KVTOOL" replay-quant run --k q8_0 --v q8_0 --json -q | jq -r '.results[0].runs[3].predicted_kl.method'
"$KVTOOL" replay-quant "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/kjv3m" --k q8_0 --v int4_per_token_head --json -q > kjv.json
$VALIDATE < kjv.json
jq -c '.results[0] | .runs[1].flags, .runs[3].flags, .runs[3].predicted_kl, .missing_layers' kjv.json
# Values beyond 464 become NaN in a cast without a scale, and give no figure.
$PYTHON -c "
import numpy as np
k = np.load('$TESTDATA/trace/kjv3m-L0-K.npy'); k[3, 1, 7] = 500
np.savez('snapshot.npz', k_0=k, v_0=np.load('$TESTDATA/trace/kjv3m-L0-V.npy'))
np.savez('trace.npz', **{'q.0': np.load('$TESTDATA/trace/kjv3m-L0-Q.npy').astype('f4')})"
"$KVTOOL" replay-quant snapshot.npz --trace trace.npz --k fp8_cast,fp8_e4m3 --v f16 --json -q | jq -c '.results[0] | .warnings, [.runs[] | .attention_kl == null]'
