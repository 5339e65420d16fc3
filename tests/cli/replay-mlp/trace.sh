# Recorded queries replace keys as queries: a mean-pooling "MLP" of a real cache, with the engine's own queries. A
# trace that does not fit is refused.
"$PYTHON" "$SHARED_SUITE/mean_weights.py"
flags="--weights mean.bin --positions original --image-len 0"
"$KVTOOL" replay-mlp "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" $flags --json > report.json 2> /dev/null
$VALIDATE < report.json
jq -c '.results[0] | [.quality.queries, .quality.query_rows, .quality.query_heads]' report.json
# The weights compute the mean, so step and mean-pool baseline cost the same except for rounding in f16.
jq -e '.results[0] | [.quality.methods[] | select(.name == "mlp" or .name == "mean-pool") | .all.output_error.mean] | (.[0] - .[1] | fabs) < 1e-2' report.json
status=0
"$KVTOOL" replay-mlp "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/kjv3m" $flags > /dev/null || status=$?
echo "another model's trace: $status"
