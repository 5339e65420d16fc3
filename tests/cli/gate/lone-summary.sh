# A suite's summary.json without its folder is judged by every rule of the suite on its rows, in all outputs.
golden="$TESTDATA/golden/mnn/gate/suite"
cp "$golden/summary.json" .
"$KVTOOL" gate --engine-logs summary.json --deterministic --junit-out gate.xml --html-out gate.html -o ours.json || echo "exit $?"
$VALIDATE < ours.json
cmp <(jq -S .rows ours.json) <(jq -S .rows summary.json) && echo "the original's rows"
$PYTHON - << 'PY'
import xml.etree.ElementTree as tree
for suite in tree.parse("gate.xml").getroot():
    print(suite.get("name"), {key: suite.get(key) for key in ("tests", "failures", "skipped")})
PY
jq -r '.cases[] | select(.name == "runtime_store" or .name == "llm_demo_full") | .name as $n | .rules[] | "\($n) \(.metric) \(.op) \(.limit): \(.value) \(.status)"' ours.json
# One summary passes, and falsified copies of it do not.
. "$SHARED_SUITE/judge.bash"
good() { jq "$1" "$golden/summary.json" > one.json; }
all='.rows |= map(select(.overall_pass)) | .overall_pass = true | .total_cases = (.rows | length)'
echo '{"schema": "kvtool.gate-config/1", "expected_cases": ["runtime_probe", "runtime_store", "llm_demo_full"]}' > part.json
config=part.json
try() { title=$1; good "$all | $2"; shift 2; judge one.json "$@"; }
try "nothing" .
try "a row too few" ".total_cases = 4"
try "a case twice" ".rows += [.rows[1]] | .total_cases = 4"
try "the verdict of all" ".overall_pass = false"
try "a ratio" ".rows[1].lossy_best = 2.9"
try "the estimate" ".rows[1].lossless_selected_value = 1.2"
try "a queue" ".rows[1].runtime_queue_peak_best = 9"
try "fallbacks" ".rows[0].runtime_fallback_best = 1"
try "decoding" ".rows[1].runtime_decomp_best_us = 0"
try "decoding for too long" ".rows[1].runtime_decomp_best_us = 70001"
try "waiting" ".rows[1].runtime_async_wait_best_us = 40001"
try "suspicious lines" ".rows[1].kv_invalid_log_count = 1"
try "consistency" ".rows[1].kv_content_consistency_pass = false"
try "a return code" ".rows[1].return_code = 1"
try "a given return code" . --return-codes runtime_store=1
try "no summary" ".rows[1].summary_exists = false"
# A figure that the suite always writes was removed.
try "no ratio" "del(.rows[1].lossy_best)"
try "no baseline" "del(.rows[1].decode_baseline)"
try "no lines counted" "del(.rows[0].kv_invalid_log_count, .rows[0].kv_content_consistency_pass)"
try "real prompts, no speed" "del(.rows[2].candidate_decode_tps_avg)"
try "real prompts, nothing evicted" ".rows[2].candidate_lossy_ratio_avg = 1"
try "real prompts, too slow" ".rows[2].candidate_decode_tps_avg = 4"
config=
# kvtool's own summary is not taken for an engine's.
"$KVTOOL" gate --engine-logs ours.json || echo "exit $?"
head -c 900 summary.json > cut.json
"$KVTOOL" gate --engine-logs cut.json || echo "exit $?"
sed '0,/"overall_pass": false/s//"overall_pass": true, &/' summary.json > twice.json
"$KVTOOL" gate --engine-logs twice.json || echo "exit $?"
# Doctor names it, the folder, and a file that is not a summary.
cp -r "$golden" suite; chmod -R u+w suite
for file in summary.json suite; do "$KVTOOL" doctor $file; done
rm suite/summary.json; "$KVTOOL" doctor suite | sed -n 1,2p
# Several summaries form a history.
jq '.generated_at = "2026-02-01T00:00:00"' summary.json > newer.json
"$KVTOOL" report newer.json summary.json --html-out history.html | sed -n 1p
grep -c "Verdicts by case" history.html
