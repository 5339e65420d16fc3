# Lists every cell of a cache, with its position and its sequences.
cd "$TESTDATA/llamacpp/states"
for state in s260k-v050-shared-prefix.session.bin s260k-v050-holes.seq0.bin synthetic-gemma3-iswa-v050.seq0.bin; do
  "$KVTOOL" inspect --cells $state | sed -n '/^ *cells  *cell/,$p'
done
"$KVTOOL" inspect --cells --json s260k-v050-shared-prefix.session.bin > "$OLDPWD/cells.json"
cd "$OLDPWD"
$VALIDATE < cells.json
jq -c '.results[0] | .cells[0] | .count == (.records | length), .records[0], .records[-1]' cells.json
"$KVTOOL" inspect --cells "$TESTDATA/golden/mnn/dumps/case_fp16_h8_l1_fa64" | tail -n 1
