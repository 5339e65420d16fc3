# Tests the eviction of the MNN build that its authors measured, and lengths as in the suite: a prompt followed by a
# number of decoded tokens.
gate() { # MEMBERS FLAGS: runs a case with these members
  cat > gate.json << JSON
{"schema": "kvtool.gate-config/1", "cases": [
  {"name": "lengths", "mode": "full", "snapshot": "$TESTDATA/trace/s260k.seq0.bin", "trace": "$TESTDATA/trace/s260k", $1
   "params": {"h2o_layer_start": 0, "h2o_block_tokens": 8, "h2o_sink_tokens": 4, "h2o_recent_tokens": 16, "h2o_trigger_min_tokens": 64},
   "rules": [{"metric": "lossy_best", "op": ">=", "limit": 1}]}]}
JSON
  shift
  status=0
  "$KVTOOL" gate gate.json --deterministic --json -q "$@" > out.json 2> err.txt || status=$?
  echo "exit $status"
  if [ $status = 2 ]; then cat err.txt; return; fi
  jq -c '.results[0].cases[0] | [.rows[] | [.prompt_tokens, .decode_tokens]], (.engine.lossy_best * 1000 | round), .true_figures.evictions' out.json
}
gate '"prompt_tokens": [64, 96], "decode_tokens": 32,'
$VALIDATE < gate.json
$VALIDATE < out.json
gate '"prompt_tokens": 64,' --decode-tokens 48
gate '"prompt_tokens": 64,'
gate '"prompt_tokens": 64, "engine": "mnn-r6",'
$VALIDATE < gate.json
# A row with fewer tokens than it should have is another measurement.
gate '"prompt_tokens": 64,' --decode-tokens 500
gate '"prompt_tokens": 64,' --decode-tokens 0
gate '"prompt_tokens": 64, "decode_tokens": 0,'
# Another prompt or length counts as other settings, and the comparison with the baseline says so.
gate '"prompt_tokens": 64, "decode_tokens": 48,' -o old.json
gate '"prompt_tokens": 64, "decode_tokens": 64,' --baseline old.json
jq -r '.results[0].warnings[]' out.json
