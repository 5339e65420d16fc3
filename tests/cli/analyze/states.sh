# Real states give printed text and a document per format, the same for every number of threads.
for state in kjv3m-v050-f16.seq0.bin s260k-v050-bf16.seq0.bin kjv3m-v050-q8_0-rotated.seq0.bin; do
  file=$(find "$TESTDATA" -name "$state" | sed -n 1p)
  [ -n "$file" ] || continue
  for threads in 1 4; do "$KVTOOL" analyze "$file" -q -T $threads --json --deterministic > $threads.json; done
  cmp 1.json 4.json
  $VALIDATE < 1.json > /dev/null
  jq -e '.results[0] | .summary.total.decodes and (.summary.total.ratio > 1)' 1.json > /dev/null
done
cp "$TESTDATA/trace/s260k.seq0.bin" .
# If the header is cut among its tensors, or has none, it does not show whether RoPE has factors.
header="$TESTDATA/llamacpp/s260k-header.gguf"
{ head -c 8 "$header"; head -c 8 /dev/zero; tail -c +17 "$header"; } > model.gguf
"$KVTOOL" analyze s260k.seq0.bin --model model.gguf --per-head
