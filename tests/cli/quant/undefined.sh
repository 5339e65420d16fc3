# Query rows with NaN do not count in the figures of replay-quant and advise, and both say how many there are.
$PYTHON "$SHARED_SUITE/../gate/nan_queries.py" "$TESTDATA"
state="$TESTDATA/trace/s260k.seq0.bin"
quant() { "$KVTOOL" replay-quant "$state" --k q4_0 --v f16 --json -q "$@" | jq -c '.results[0] | [.warnings[] | select(test("undefined"))], .runs[-1].output_error == null'; }
quant --trace last/s260k
quant --trace all/s260k
quant --trace "$TESTDATA/trace/s260k"
"$KVTOOL" advise "$state" --trace last/s260k --prompt-tokens 64 --min-ratio 2 --policy window,h2o --budget 0.5,0.25 2> /dev/null | sed -n 1,2p
# A type that changes no token has no signal-to-noise ratio.
"$KVTOOL" replay-quant "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/kjv3m" --k kivi2,q8_0 --v kivi2 --json -q |
  jq -c '.results[0].runs[] | select(.k == "kivi2" or .v == "kivi2") | [.k, .v, .output_error == 0, .layers[0].k_snr_db == null, .layers[0].v_snr_db == null]'
