# A config with snapshots and an engine's logs: its rules are added to those of the logs, and replace none.
golden="$TESTDATA/golden/mnn/gate"
mkdir -p good
cp -r "$golden/suite/runtime_store" good/
chmod -R u+w good
config() {  # NAME RULES
  cat > gate.json << JSON
{"schema": "kvtool.gate-config/1", "cases": [
  {"name": "$1", "mode": "store", "snapshot": "$TESTDATA/trace/s260k.seq0.bin", "trace": "$TESTDATA/trace/s260k",
   "prompt_tokens": 64, "rules": [{"metric": "lossy_best", "op": ">=", "limit": 1}, $2]}]}
JSON
}
judge() {
  status=0
  "$KVTOOL" gate gate.json --deterministic --json -q --engine-logs "$@" > out.json 2> err.txt || status=$?
  echo "$title: exit $status"
  jq -r '.results[0] | .cases[] | .name as $n | .origin as $o | .rules[] | select(.status == "fail") | "  \($n) (\($o)) \(.metric) \(.where.log // ""): \(.reason)"' out.json
}
cheat() { title=$1; rm -rf suite; cp -r good suite; (cd suite; eval "$2"); judge suite; }
lenient='{"metric": "runtime_fallback_best", "op": "<=", "limit": 9}'
config runtime_store "$lenient"
md=runtime_store/summary.md
cheat "nothing" ":"
jq -c '.results[0] | .cases[] | [.name, .origin, .status]' out.json
cheat "invalid lines" "echo 'Invalid KV realloc: 1' > runtime_store/x.stderr.log"
cheat "invalid lines of the report" "sed -i 's/kv_invalid_log_count: 0/kv_invalid_log_count: 2/' $md"
cheat "fallbacks" "sed -i 's/runtime_fallback_best: .*/runtime_fallback_best: 1.0000/' $md"
cheat "a failed run" "echo '[{\"run_id\": \"run_0001\", \"return_code\": -11}]' > runtime_store/manifest.json"
cheat "a return code" "echo '{\"case\": \"runtime_store\", \"return_code\": 1, \"overall_pass\": true}' > cases.jsonl"
cheat "the engine's no" "sed -i 's/overall_pass: true/overall_pass: false/' $md"
config runtime_store '{"metric": "lossy_best", "op": ">=", "limit": 99}'
cheat "an own rule" ":"
# The logs have cases that the config does not name.
config mine "$lenient"
cheat "no case of its name" "echo 'Invalid KV realloc: 1' > runtime_store/x.stderr.log"
config runtime_store "$lenient"
cheat "another case" "mkdir runtime_probe; echo 'double free' > runtime_probe.console.log"
mkdir logs; cp "$golden"/logs_bad/*.log logs/
title="bench logs"; judge logs
# The same without a snapshot: the config's thresholds apply to the case in the logs.
echo '{"schema": "kvtool.gate-config/1", "cases": [{"name": "runtime_store", "rules": [{"metric": "runtime_fallback_best", "op": "<=", "limit": 9}]}]}' > gate.json
cheat "without a snapshot" ":"
cheat "without a snapshot, fallbacks" "sed -i 's/runtime_fallback_best: .*/runtime_fallback_best: 1.0000/' $md"
cheat "without a snapshot, damage" "echo 'Invalid KV realloc: 1' > runtime_store/x.stderr.log"
