# Folders of logs: a log without an end never passes, and logs that no rule judges are named.
logs=$TESTDATA/llamacpp/logs
gate() { status=0; "$KVTOOL" gate "$@" --deterministic || status=$?; echo "exit $status"; }
mkdir all; cp "$logs/server.log" all/good.log
printf '0.00.1 I llama_model_loader: loaded meta data\nllama_kv_cache: size = 9 MiB, K (f16): 6.00 MiB, V (f16): 3.00 MiB\n' > all/died.log
gate --engine-logs all --require 'tokens_per_second>=1' -q
# Figures that the logs have are judged, even if a log was cut.
gate --engine-logs all --require 'resident_bytes.peak>=1' -q
# An undecided case fails unless a config says that such cases only warn.
mkdir cut; cp all/good.log cut; cp "$logs/perplexity.log" cut
echo '{"schema": "kvtool.gate-config/1", "expected_cases": 1}' > all.json
echo '{"schema": "kvtool.gate-config/1", "expected_cases": 1, "on_not_run": "warn"}' > warn.json
printf 'chunk  PPL  ln(PPL(Q)/PPL(base))\n   1  14.2 x\n' > cut/died.log
for config in all.json warn.json; do gate "$config" --engine-logs cut --require 'prompt_tokens_per_second>=1' -q 2>&1; done
gate --engine-logs cut --require 'prompt_tokens_per_second>=1' -q
rm cut/perplexity.log
gate --engine-logs cut -q -f -o first.json 2> /dev/null
cp "$logs/server.log" cut/died.log; gate --engine-logs cut -q -f -o whole.json 2> /dev/null
gate --engine-logs all --baseline whole.json -q
# Cases that the config does not name, and files that are not logs of llama.cpp, are also named in the summary.
echo notes > all/notes.txt; mkdir all/older; cp "$logs/perplexity.log" all
cat > own.json << 'JSON'
{"schema": "kvtool.gate-config/1", "cases": [
  {"name": "good.log", "mode": "full", "rules": [{"metric": "tokens_per_second", "op": ">=", "limit": 30}]}]}
JSON
gate own.json --engine-logs all -q -f -o summary.json --html-out page.html
$VALIDATE < summary.json
jq -c .warnings summary.json
sed -n '/## Warnings/,/^$/p;/^- all/p' summary.md
grep -o 'does not name[^<]*' page.html
gate own.json --engine-logs all -q --case good.log
# In a folder with a suite of MNN and logs of llama.cpp, both are judged.
cp -r "$TESTDATA/golden/mnn/gate/suite" both; chmod -R u+w both; cp "$logs/server.log" both
"$KVTOOL" gate --engine-logs both --require 'tokens_per_second>=1' --json -q | jq -c '.results[0].cases[] | [.name, .status]' || true
# Another program's table is not taken for MNN's log.
printf '| a | b |\n|---|---|\n| 1 | 2 |\n' > table.md; printf 'a,b\n1,2\n' > table.csv
for file in table.md table.csv; do gate --engine-logs "$file"; ("$KVTOOL" doctor "$file" 2> /dev/null || true) | sed -n 2p; done
# A test with another number of tokens is another case.
gate --engine-logs "$logs/bench.json" -q -f -o bench.json 2> /dev/null
sed 's/"n_prompt": 512/"n_prompt": 2048/' "$logs/bench.json" > all/bench.json
"$KVTOOL" gate --engine-logs all/bench.json --baseline bench.json 2>&1 | grep -o "case '.*pp512' is not in this run" | sort -u || true
# Cases are named after the log's file: under another name they are new, and the old ones are missing.
mv all/bench.json bench-2.json; gate --engine-logs bench-2.json --baseline bench.json -q 2> /dev/null
