# llama.cpp's own logs: their figures are in the same table and document as all others, and judged by rules of the
# command line, a config or a baseline. The logs were written by hand from lib/engines/llamacpp/logs/FORMAT.md.
logs=$TESTDATA/llamacpp/logs
gate() { status=0; "$KVTOOL" gate "$@" --deterministic || status=$?; echo "exit $status"; }
gate --engine-logs "$logs/server.log" 2> /dev/null
gate --engine-logs "$logs/bench.json" --require 'tokens_per_second>=40' --require 'prompt_tokens_per_second>=700' -o summary.json
$VALIDATE < summary.json
jq -c '.cases[] | [.name, .origin, .mode, .params.type_k, .engine, .true_figures]' summary.json
jq -c '.rows[] | [.case, .overall_pass, .decode_gate_tps]' summary.json
sed -n '/## Figures/,$p' summary.md
"$KVTOOL" gate --engine-logs "$logs/perplexity.log" --require 'loss.mean_kl<=0.01' --html-out page.html --junit-out junit.xml --json --deterministic > out.json
$VALIDATE < out.json
jq -c '.results[0].cases[0] | .true_figures, .params' out.json
grep -c 'loss.mean_kl' page.html junit.xml
cd "$logs"
gate --engine-logs perplexity.log --require 'loss.mean_kl<=0.01' --require 'loss.same_top>=0.98'
cd "$OLDPWD"
# Against a baseline, a drop of more than 5 % fails; one within the noise of the bench's own repetitions is not decided.
sed 's/"avg_ts": 61.35/"avg_ts": 50.0/; s/"avg_ts": 790.2/"avg_ts": 745.0/; s/"n_threads": 8/"n_threads": 4/' "$logs/bench.json" > bench.json
gate --engine-logs bench.json --baseline summary.json 2>&1
# Each test of a bench is compared with itself: no faster test hides a slower one, a missing one fails, a new one does
# not.
pp() { # LENGTH SPEED...: writes a llama-bench report of prompts
  while [ $# -gt 0 ]; do echo "{\"n_prompt\": $1, \"n_gen\": 0, \"avg_ts\": $2}"; shift 2; done
}
mkdir old new; pp 512 210 2048 180 > old/bench.jsonl
gate --engine-logs old -q -f -o old.json 2> /dev/null
pp 512 183 2048 180 > new/bench.jsonl; gate --engine-logs new --baseline old.json
pp 512 210 > new/bench.jsonl; gate --engine-logs new --baseline old.json
pp 512 210 2048 180 4096 120 > new/bench.jsonl; gate --engine-logs new --baseline old.json 2>&1
# One log is empty, the other is of a run that did not find its model.
: > new/empty.json; gate --engine-logs new --require 'prompt_tokens_per_second>=1' 2>&1
echo 'main: error: failed to load model models/x.gguf' > new/empty.json; gate --engine-logs new --require 'prompt_tokens_per_second>=1'
# Only one folder or log is accepted at a time, and only a case that exists.
gate --engine-logs new --engine-logs old 2>&1
gate --engine-logs old --case bench.jsonl:pp51 2>&1
# Logs without rules are a first baseline, unless a log is broken.
gate --engine-logs "$logs/bench.json" -q -o first.json -f 2> /dev/null
gate --engine-logs "$logs/bench.json" --baseline first.json | sed -n 1p
printf ' eval time = 2000.00 ms / 100 runs\nllama_decode: failed to decode, ret = -3\n' > broken.log
gate --engine-logs broken.log -q -o first.json -f 2> /dev/null
"$KVTOOL" gate --engine-logs broken.log --baseline first.json --json -q | jq -r '.results[0].baseline.problems[0]' || true
# With a config, the config names the cases. Without one, each log in the folder is a case.
mkdir all; cp "$logs"/*.log all
cat > own.json << 'JSON'
{"schema": "kvtool.gate-config/1", "cases": [
  {"name": "perplexity.log", "mode": "full", "rules": [{"metric": "loss.mean_kl", "op": "<=", "limit": 0.001}]},
  {"name": "server.log", "mode": "full", "rules": [{"metric": "tokens_per_second", "op": ">=", "limit": 30}]}]}
JSON
gate own.json --engine-logs all
gate --engine-logs all --require 'loss.mean_kl<=0.02' -q 2> /dev/null
# With a config, logs that no rule decides fail the gate, unless the config says that they only warn.
echo '{"schema": "kvtool.gate-config/1", "expected_cases": 1}' > any.json
echo '{"schema": "kvtool.gate-config/1", "expected_cases": 1, "on_not_run": "warn"}' > warn.json
for config in any.json warn.json; do gate "$config" --engine-logs all --require 'loss.mean_kl<=0.02' -q 2> /dev/null; done
# The logs are of a run that failed, of a truncated comparison, and hostile text.
printf ' eval time = 2000.00 ms / 100 runs\nllama_decode: failed to decode, ret = -3\n' > broken.log
gate --engine-logs broken.log --require 'tokens_per_second>=1'
sed 's/server.log/broken.log/' own.json > broken.json
"$KVTOOL" gate broken.json --engine-logs broken.log --json -q 2> /dev/null | jq -r '.results[0].cases[] | select(.name == "broken.log") | .status' || true
printf 'chunk  PPL  ln(PPL(Q)/PPL(base))\n   1  14.2 x\n' > cut.log
gate --engine-logs cut.log --require 'loss.mean_kl<=1'
# The log of a perplexity run lacks a required loss, while another rule holds.
printf 'Final estimate: PPL = 6.2 +/- 0.03\n' > plain.log
gate --engine-logs plain.log --require 'loss.perplexity<=7' --require 'loss.mean_kl<=1'
printf 'prompt eval time = 1e999 ms / nan tokens\n eval time = 2000 ms / 100 runs \033[2J\n' > odd.log
gate --engine-logs odd.log --require 'prompt_tokens_per_second>=1' --require 'tokens_per_second>=1'
no() { status=0; "$KVTOOL" gate --engine-logs "$@" || status=$?; echo "exit $status"; }
head -c 3000 "$logs/bench.json" > cut.json; no cut.json
sed 's/"n_gen": 0,/"n_gen": 0, "n_gen": 0,/' "$logs/bench.json" > twice.json; no twice.json
echo '[{"n_prompt": 1, "avg_ts": 3}]' > lacks.json; no lacks.json
sed '0,/"avg_ts":/s//"avg_ts": [], "was":/' "$logs/bench.json" > list.json; no list.json
$PYTHON -c 'print("[" + ",".join(["{\"n_prompt\": 1, \"n_gen\": 0, \"avg_ts\": 2}"] * 1000000) + "]")' > many.json; no many.json
no "$logs/server.log" --require 'tokens_per_second'
no "$logs/server.log" --require 'token_per_second>=3'
no "$logs/server.log" --require 'loss.mean_kl<=1' -q 2> /dev/null
