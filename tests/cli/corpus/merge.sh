# Shards merge into the same bytes as one run over all inputs; missing, duplicate and foreign results are refused.
# Pages name their command in the footer; everything else is compared.
without_footer() { sed '/<footer>/,/<\/footer>/d' "$1"; }
$PYTHON -m corpus_files all
head -c 500 all/pair/a.safetensors > all/pair/cut.safetensors
"$KVTOOL" corpus make all -o corpus.jsonl -q
run() { "$KVTOOL" "$@" --corpus corpus.jsonl --keep-going -q 2> err || true; }
run analyze --results all.jsonl
for i in 0 1 2; do run analyze --results s$i.jsonl --shard $i/3 --balance bytes; done
{ timeout -s KILL 0.02 "$KVTOOL" analyze --corpus corpus.jsonl --keep-going -q --results killed.jsonl; } > out 2>&1 || true
run analyze --results killed.jsonl
merge() { "$KVTOOL" merge "$@" --json --html-out page.html -f > "$out.json" || echo "exit $?"; mv page.html $out.html; }
out=one merge all.jsonl
out=three merge s2.jsonl s0.jsonl s1.jsonl
out=killed merge killed.jsonl
cmp one.json three.json && cmp <(without_footer one.html) <(without_footer three.html) && cmp one.json killed.json && echo the same
$VALIDATE < one.json
"$KVTOOL" merge 's[0-2].jsonl' --json > pattern.json || cmp pattern.json one.json
jq -c '.results[0] | [.entries, .done, .failed, (.failures[] | .name, .command)]' one.json
jq -c '.results[0].figures[] | select(.layer == null and .what == "level default") | [.part, .count, .weighted]' one.json
"$KVTOOL" merge all.jsonl -o merged.json -q || cmp merged.json one.json
fails() { local status=0; "$KVTOOL" merge "$@" > /dev/null || status=$?; echo "$status" >&2; }
fails s0.jsonl s2.jsonl
fails s0.jsonl s1.jsonl s1.jsonl s2.jsonl
fails s0.jsonl s1.jsonl s2.jsonl all.jsonl
sed '$d' s1.jsonl > cut.jsonl; fails s0.jsonl cut.jsonl s2.jsonl
run inspect --results other.jsonl; fails s0.jsonl other.jsonl
echo '{}' > bad.jsonl; fails bad.jsonl
