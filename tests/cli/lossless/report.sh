# Every document of one run fits its schema, and they agree; two runs with different threads are equal to the byte.
flags="--mode store --preset gate --hot-recent-tokens 16 --h2o-recent-tokens 24 --h2o-block-tokens 8 --h2o-trigger-min-tokens 64"
flags="$flags --store-grouped-step-tokens 32 --block-tokens 16 --prompt-tokens 96"
replay() { "$KVTOOL" replay-lossless "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" $flags -q "$@"; }
replay --detail --json --json-out report.json --jsonl events.jsonl --html-out page.html > stdout.json
cmp <(jq -S . stdout.json) <(jq -S . report.json) && echo "one document"
$VALIDATE < report.json
$VALIDATE < events.jsonl
jq -c '.results[0] | [.content.equal, .measured.decode_calls, .measured.seeded_hits == .measured.cache_copies, .memory.ratio < 1]' report.json
jq -c '.results[0] | [.memory.steps | length, .[0].token, .[-1].token]' report.json
jq -c '.results[0] | .engine_terms.h2o_lossless_decode_cache_hit == .measured.cache_copies' report.json
jq -s -c '[.[] | select(.kind == "drop")] | length' events.jsonl | grep -qx "$(jq .results[0].measured.cache_copies report.json)" && echo "every drop came back"
grep -c '<svg' page.html
if grep -E '<script .|<link|https?://[^w]|@import|url\(' page.html; then echo "the page reaches out"; fi
for engine in mnn design; do
  replay --engine $engine --deterministic -f --json --jsonl one.jsonl -T1 > one.json
  replay --engine $engine --deterministic -f --json --jsonl two.jsonl -T2 > two.json
  cmp one.json two.json && cmp one.jsonl two.jsonl && echo "$engine is deterministic"
  $VALIDATE < two.json
done
