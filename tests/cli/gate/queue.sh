# The depth of a queue depends on the speed of an engine's workers. A replay computes it for the slowest and the fastest
# workers, and leaves a rule undecided if its limit is in between. The verdict is the same from run to run, on a busy
# machine too.
gate() { # limit, flags
  cat > gate.json << JSON
{"schema": "kvtool.gate-config/1", "cases": [
  {"name": "runtime_store", "mode": "store", "snapshot": "$TESTDATA/trace/s260k.seq0.bin", "trace": "$TESTDATA/trace/s260k", "prompt_tokens": 64,
   "params": {"h2o_enable": false, "h2o_trigger_min_tokens": 64, "h2o_layer_start": 0, "h2o_lossless_scope": "h2o_kept",
     "h2o_lossless_hot_sink_tokens": 4, "h2o_lossless_hot_recent_tokens": 16, "h2o_lossless_store_bootstrap_tokens": 8,
     "h2o_lossless_store_grouped_step_tokens": 16},
   "rules": [{"metric": "runtime_queue_peak_best", "op": "<=", "limit": $1}, {"metric": "content.mismatches", "op": "<=", "limit": 0}]}]}
JSON
  shift
  status=0
  "$KVTOOL" gate gate.json --json -q "$@" > out.json 2> err.txt || status=$?
  jq -r --arg exit $status '.results[0] | "exit \($exit), \(.verdict): " + (.cases[0].rules[0] | "\(.value) \(.op) \(.limit) \(.status) \(.reason)")' out.json
}
for limit in 0 1 3 5; do gate $limit; done
$VALIDATE < out.json
gate 3 --strict
gate 3 --deterministic
busy() { while :; do :; done; }
for job in 1 2; do busy & pids="${pids:-} $!"; done
trap 'kill $pids 2> /dev/null || true' EXIT
for run in $(seq 8); do gate 3; done | sort | uniq -c
kill $pids
# Under the suite's own thresholds, times of this machine decide nothing.
for run in 1 2 3; do
  "$KVTOOL" gate --snapshot "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 96 --case runtime_store --json -q 2> /dev/null |
    jq -r '.results[0].cases[0].rules[] | select(.metric | test("_us$|drop")) | "\(.metric) \(.op) \(.limit): \(.status)"' || true
done | sort | uniq -c
