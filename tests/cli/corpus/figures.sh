# Results of evictions and types over many prompts merge into groups by model; outliers have the commands that reproduce
# them.
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" a
mkdir runs; for name in a b c d e f g h; do cp -r a runs/$name; done
$PYTHON "$SHARED_SUITE/../gate/damage_run.py" "$KVTOOL" a "runs/far off" worse
sed -i 's/stories260K/another/' runs/g/run.json runs/h/run.json
"$KVTOOL" corpus make runs -o corpus.jsonl -q
run() { local out=$1; shift; "$KVTOOL" "$@" --corpus corpus.jsonl --results $out.jsonl -q; }
run h2o replay-h2o --policy h2o,streaming --budget 0.5
for i in 0 1; do run h2o$i replay-h2o --policy h2o,streaming --budget 0.5 --shard $i/2; done
"$KVTOOL" merge h2o.jsonl --html-out h2o.html -o h2o.json
"$KVTOOL" merge h2o1.jsonl h2o0.jsonl --html-out two.html -o two.json -q > /dev/null
# Pages name their command in the footer; everything else is compared.
without_footer() { sed '/<footer>/,/<\/footer>/d' "$1"; }
cmp h2o.json two.json && cmp <(without_footer h2o.html) <(without_footer two.html) && echo the same
$VALIDATE < h2o.json
sed -n 2p h2o.jsonl | $VALIDATE
jq -r '.results[0].groups[] | "\(.model) \(.format) \(.entries) \([.figures[].figure] | unique | join(","))"' h2o.json
# The aggregates equal those of the single results.
jq -s '[.[] | select(.result) | .result.runs[] | select(.policy == "h2o") | .attention.output_error.frobenius] | [length, add / length, max]' -c h2o.jsonl > of_results
jq -c '.results[0].figures[] | select(.figure == "output_error" and .what == "h2o 0.5") | [.count, .mean, .max]' h2o.json > of_merge
$PYTHON -c 'import json; a, b = (json.load(open(f)) for f in ("of_results", "of_merge")); print(len(a), all(abs(x - y) < 1e-12 for x, y in zip(a, b)))'
(cd runs && jq -r '[.results[0].outliers[].command] | unique[]' ../h2o.json > ../commands && cat ../commands && sed 's/^kvtool/"$KVTOOL"/' ../commands > ../again.sh && . ../again.sh > ../again.txt && head -1 ../again.txt)
grep -o 'By model\|Far from the others\|>another<' h2o.html | sort | uniq -c | sed 's/^ *//'
run quant replay-quant --k q8_0,q4_0 --v q8_0
"$KVTOOL" merge quant.jsonl -o quant.json -q; $VALIDATE < quant.json
jq -r '.results[0].figures[] | "\(.what) \(.figure) \(.count) \(.weighted == null)"' quant.json
