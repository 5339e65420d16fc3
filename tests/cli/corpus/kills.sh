# Runs over a corpus and merges that are killed at random lose nothing and count nothing twice. scripts/scale has the large one.
cat > gate.json <<'END'
{"schema": "kvtool.gate-config/1",
 "defaults": {"prompt_tokens": 48, "params": {
   "h2o_lossless_block_tokens": 16, "h2o_lossless_hot_sink_tokens": 4, "h2o_lossless_hot_recent_tokens": 16,
   "h2o_trigger_min_tokens": 48, "h2o_lossless_store_bootstrap_tokens": 8, "h2o_lossless_store_grouped_step_tokens": 16}},
 "cases": [{"name": "stored", "mode": "store", "rules": [{"metric": "content.mismatches", "op": "<=", "limit": 0}]}]}
END
$PYTHON "$SCRIPTS/scale/corpus_kills.py" "$KVTOOL" --inputs 40 --kills 4 --config gate.json | sed 's/, [0-9]* outputs.*/, the old or the new/'
