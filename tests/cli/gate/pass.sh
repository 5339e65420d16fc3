# A gate that passes writes all outputs, valid against their schemas, byte for byte the same from run to run.
cd "$TESTDATA"
gate() { "$KVTOOL" gate gate/pass.json --deterministic "$@"; }
out=$OLDPWD
gate -o "$out/summary.json" -T 1 > "$out/table.txt"
cd "$out"
$VALIDATE < summary.json
mkdir first && mv summary.json summary.md cases.jsonl table.txt first/
(cd "$TESTDATA" && gate -o "$out/summary.json" -T 3 > "$out/table.txt")
for name in summary.json summary.md cases.jsonl table.txt; do cmp $name first/$name && echo "$name: run to run the same"; done
cat table.txt
cmp <(jq -c '.rows[]' summary.json) <(jq -c . cases.jsonl) && echo "a line per row"
jq -c '{verdict, overall_pass, generated_at, passed_cases, failed_cases, not_run_cases}' summary.json
jq -r '.cases[] | .name as $name | .rules[] | "\($name) \(.metric) \(.op) \(.limit): \(.status)"' summary.json
jq -c '.rows[] | [.case, .overall_pass, .quality_status, .decode_gate_tps]' summary.json
jq -c '.cases[1].rows[] | [.prompt_tokens, .decode_tokens]' summary.json
# MNN's eviction ratio is never below kvtool's true one.
jq -c '.cases[] | select(.origin == "replay") | .engine.lossy_best >= .true_figures.lossy_worst' summary.json
jq -c '.cases[0].not_measured | has("decode_gate_tps") and has("runtime_decomp_best_us")' summary.json
# The config matches its schema once its comments are removed.
sed -E 's|^ *//.*||' "$TESTDATA/gate/pass.json" | $VALIDATE
sed -E 's|^ *//.*||' "$TESTDATA/gate/fail.json" | $VALIDATE
