# A budget is exact: kept tokens at every step, the same for every policy; ratios rise with the target.
replay() {
  "$KVTOOL" replay-h2o "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 64 --no-quality --after-prompt hold "$@"
}
replay --target-ratio 8,2,1.5,4,3 --json | jq -c '.results[0] | [.runs[] | [.target_ratio, .ratio]]'
every='[.runs[] | select(.policy != "full" and .policy != "block" and .policy != "pyramid")]'
replay --policy all --budget 0.5 --detail --json > half.json
$VALIDATE < half.json
jq -c ".results[0] | $every | length, ([.[] | .ratio] | unique), ([.[] | [.steps[].kept_bytes]] | unique | length)" half.json
jq -c ".results[0] | $every[0] | [.steps[] | .kept_bytes * 2 <= .full_bytes] | unique" half.json
replay --policy all --budget 40t --json > tokens.json
jq -c ".results[0] | $every | [.[] | .layers[].kept_tokens] | unique" tokens.json
jq -c '.results[0] | .runs[] | select(.policy == "block") | [.layers[].kept_tokens >= 40, .layers[].kept_tokens < 40 + .params.h2o_block_tokens] | unique' tokens.json
# pyramid has a budget per layer, with the same sum.
replay --policy pyramid,snapkv --budget 40t --window 2 --json | jq -c '.results[0] | .runs[] | [.layers[].kept_tokens], ([.layers[].kept_tokens] | add)'
# The tokens kept after a step, and the length of the snapshot then.
replay --policy tova --budget 40t --plan-out plan.json --snapshot-out kept.safetensors -q > /dev/null
jq -c '.schedule, ([.events[] | [.kept[][1]] | add] | unique), ([.events[].token] | unique | [first, last, length])' plan.json
"$KVTOOL" inspect kept.safetensors --json | jq -c '.results[0] | [.layers[].k.tokens] | unique'
# A first trigger that evicts nothing does not count as an eviction.
replay --trigger-min 192 --budget 0.5 --json | jq -c '.results[0] | .runs[0] | .evictions, .ratio, .nothing_evicted_because'
# After the end of the prompt the budget is constant, or grows as published.
replay --policy snapkv --window 4 --budget 20t --after-prompt grow --json | jq -c '.results[0] | .runs[0] | .evictions, .layers[0].kept_tokens'
# Default parameters fit short caches, and are printed.
replay --budget 8t,100t | sed -n 2p
# A note names policies that are equivalent to another one.
replay --policy snapkv,pyramid --budget 100t,150t | grep note
# If positions are counted within the cache, the same tokens are kept, but attention over them differs.
turned() {
  "$KVTOOL" replay-h2o "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 64 --policy streaming --budget 24t --json "$@" |
    jq '.results[0] | .params.re_rotated, .runs[0].attention.mass.mean, .runs[0].attention.output_error.mean, .notes'
}
turned > plain.txt
turned --re-rotate --rope-base 1e4 --rope-style gptj > turned.txt
cmp <(sed -n 2p plain.txt | cut -c1-8) <(sed -n 2p turned.txt | cut -c1-8) && echo "the same mass"
cmp -s <(sed -n 3p plain.txt) <(sed -n 3p turned.txt) || echo "other outputs"
grep -c "positions within the cache" turned.txt
