# Profiles are learnt and shown; damaged or empty ones are refused.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
"$KVTOOL" train "$state" --name stories260K -o model.kvp
"$KVTOOL" train "$state" --name stories260K -o model.kvp || echo "exit $?"
"$KVTOOL" train "$state" "$state" --name stories260K -o model.kvp -f --json | grep -c '"bits_per_value"'
"$KVTOOL" inspect "$TESTDATA/profiles/s260k.kvp" | sed -n 1,5p
"$KVTOOL" inspect "$TESTDATA/profiles/s260k.kvp" --json | grep '"hash"'
# The independent decoder decodes the golden frame.
if "$PYTHON" -c 'import numpy, zstandard' 2>&-; then
  "$PYTHON" "$SCRIPTS/decoder/decode_frame.py" "$TESTDATA/profiles/page.kvf" page.f16 --profile "$TESTDATA/profiles/s260k.kvp" 2> said || cat said
  cmp page.f16 "$TESTDATA/profiles/page.f16"
  "$PYTHON" "$SCRIPTS/decoder/decode_frame.py" "$TESTDATA/profiles/page.kvf" page.f16 2> said && echo decoded
fi

echo "-- across layers"
"$KVTOOL" train "$state" --name stories260K --across-layers 40KiB -o across.kvp --json > trained.json
$VALIDATE < trained.json && jq -c '.results[0] | .across_layers, (.profile.regressions | length, .[0])' trained.json
cmp across.kvp "$TESTDATA/profiles/rows.kvp" && echo the same profile as the golden one
"$KVTOOL" train "$state" --kv-heads 4 --name stories260K --across-layers 40KiB -o heads.kvp -q
cmp heads.kvp across.kvp && echo the rotation is found without the number of heads
"$KVTOOL" inspect across.kvp | tail -n 10
"$KVTOOL" inspect across.kvp --json > inspected.json && $VALIDATE < inspected.json
"$KVTOOL" train "$state" "$state" "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" --across-layers 16KiB -o three.kvp
"$KVTOOL" train "$state" --across-layers 100 -o none.kvp || echo "exit $?"
"$KVTOOL" train "$state" --across-layers 5MB -o none.kvp || echo "exit $?"
"$KVTOOL" train "$state" --across-layers 0 -o none.kvp || echo "exit $?"
"$KVTOOL" train "$state" --across-layers 1MiB --transform kvtc --kv-heads 4 -o none.kvp || echo "exit $?"
"$KVTOOL" convert "$state" --layers 0:2 --kv-heads 4 --to safetensors -q -o part.safetensors
"$KVTOOL" train "$state" part.safetensors --across-layers 1MiB -o none.kvp || echo "exit $?"
"$KVTOOL" train "$TESTDATA/llamacpp/states/kjv3m-b8352-q8_0.seq0.bin" --across-layers 1MiB -o none.kvp || echo "exit $?"
head -c 20000 across.kvp > cut.kvp
"$KVTOOL" inspect cut.kvp || echo "exit $?"

echo "-- refused"
head -c 5000 "$TESTDATA/profiles/s260k.kvp" > cut.kvp
"$KVTOOL" inspect cut.kvp || echo "exit $?"
"$KVTOOL" train "$TESTDATA/llamacpp/states/kjv3m-b8352-q8_0.seq0.bin" -o none.kvp || echo "exit $?"
"$KVTOOL" train "$state" "$TESTDATA/profiles/s260k.kvp" -o none.kvp || echo "exit $?"
"$KVTOOL" train "$state" || echo "exit $?"
# A too long name is refused before any input is read.
"$KVTOOL" train absent.bin --name "$(printf '%0256d' 0)" -o none.kvp || echo "exit $?"
test -e none.kvp && echo written
true
