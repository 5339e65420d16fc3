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
head -c 5000 "$TESTDATA/profiles/s260k.kvp" > cut.kvp
"$KVTOOL" inspect cut.kvp || echo "exit $?"
"$KVTOOL" train "$TESTDATA/llamacpp/states/kjv3m-b8352-q8_0.seq0.bin" -o none.kvp || echo "exit $?"
"$KVTOOL" train "$state" "$TESTDATA/profiles/s260k.kvp" -o none.kvp || echo "exit $?"
"$KVTOOL" train "$state" || echo "exit $?"
# A too long name is refused before any input is read.
"$KVTOOL" train absent.bin --name "$(printf '%0256d' 0)" -o none.kvp || echo "exit $?"
test -e none.kvp && echo written
true
