# The defaults are those of the papers and of MNN's documentation; no report states a higher ratio than the written plan
# has.
replay() {
  "$KVTOOL" replay-h2o "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 64 "$@"
}
# The prompt is compressed once, and every later token stays; names may have any case.
replay --policy SnapKV,H2O --snapkv-window 16 --budget 0.5 --no-quality --json > published.json
$VALIDATE < published.json
jq -c '.results[0] | [.runs[] | [.policy, .same_as, .evictions, .layers[0].kept_tokens]], .notes' published.json
replay --policy snapkv --snapkv-window 16 --budget 0.5 --no-quality --plan-out plan.json -q > /dev/null
jq -c '.events | [.[].token] | unique' plan.json
replay --policy snapkv --budget 100t --no-quality --json -q | jq -c '.results[0].runs[0] | [.ratio, .nothing_evicted_because]'
# A policy that is equivalent to another is marked in its row, in the legend and in the picture.
replay --policy snapkv,pyramid,window --budget 0.25,0.5 --snapkv-window 24 --svg-out pictures -f | sed "s,$TESTDATA/,," | cut -c1-60
grep -ho 'snapkv (= window here)\|pyramid (= window here)\|pyramid (= snapkv here)' pictures/attention-output-error-against-the-achieved-ratio.svg | sort | uniq -c
# MNN's published design as an engine: sink and recent blocks always stay, even if they exceed the target.
mnn="--block-tokens 8 --sink 4 --recent 64 --trigger-min 64 --layer-start 1 --no-quality"
for engine in design mnn mnn-r6; do
  replay $mnn --engine $engine --jsonl-out $engine.jsonl -f -q > /dev/null
  $VALIDATE < $engine.jsonl
  jq -cs --arg engine $engine '[.[] | select(.triggered)] | [$engine, length, (.[0] | .token, .layer, .floor_dominates, .kept_tokens, .target_ratio)]' $engine.jsonl
done
replay $mnn --schedule mnn | sed -n 1p
# MNN's names of the options give the same result.
cmp <(replay $mnn --engine mnn --target-ratio 2) <(replay --h2o-block-tokens 8 --h2o-sink 4 --h2o-recent-tokens 64 --h2o-trigger-min 64 \
  --h2o-layer-start 1 --no-quality --engine mnn --h2o-target-lossy-ratio 2) && echo "the same by either name"
replay $mnn --engine mnn --target-mode static --h2o-target-keep-ratio 0.75 --recent 16 2> /dev/null | tail -1 | cut -c1-50
for flags in "--schedule mnn --keep-share 0.5" "--target-mode static --keep-share 0.5" "--target-mode static --engine mnn --keep-share 2" \
  "--target-mode static --engine mnn --keep-share 0.5 --target-ratio 2"; do
  status=0; replay $flags || status=$?; echo "$status"
done
# Layers without rows keep everything, in the figures and in the plan.
kjv3m() {
  "$KVTOOL" replay-h2o "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/kjv3m" --prompt-tokens 48 --no-quality --plan-out kjv3m.json -f \
    --json "$@" > report.json
  jq -c '.results[0] | .runs[0] | .ratio, [.layers[] | [.layer, .traced, .kept_tokens]]' report.json
  jq -c '[.events[] | select(.kv_head == null or .kv_head == 0)] | group_by(.layer) | map(last | [.layer, ([.kept[][1]] | add)])' kjv3m.json
}
kjv3m --policy window --target-ratio 2
kjv3m --engine mnn --block-tokens 8 --sink 4 --recent 16 --trigger-min 48 --layer-start 0 --target-ratio 2
kjv3m --policy window --target-ratio 2 --layer-start 1 --layer-end 2
jq -c '.results[0].runs[0].nothing_evicted_because' report.json
