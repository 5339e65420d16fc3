# Real dumps, logical or packed, as archives: kvtool and the decoder written from FORMAT.md alone restore the folder
# unchanged.
for name in case_fp16_h8_l1_fa64 case_fp32_h4_l1_fa64; do
  run="$TESTDATA/golden/mnn/dumps/$name"
  for layout in logical packed; do
    "$KVTOOL" compress -q "$run" --layout "$layout" -o "$layout.kvz"
    "$KVTOOL" verify -q "$layout.kvz" --against "$run"
    "$KVTOOL" decompress -q "$layout.kvz" -o restored
    diff -r restored "$run"
    if "$PYTHON" -c 'import numpy, zstandard' 2>&-; then
      "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" "$layout.kvz" decoded > decoder.log 2>&1
      diff -r decoded "$run"
    fi
    rm -rf restored decoded
    echo "$name $layout restored"
  done
  "$KVTOOL" decompress -q logical.kvz --to npz --layers 1 --kv k -o k.npz
  # Packed tiles do not form chunks of their own: the source is restored to a temporary folder and read again.
  "$KVTOOL" decompress packed.kvz --to npz --layers 1 -o packed.npz -q
  "$KVTOOL" diff "$run" packed.npz --layout packed --from-b auto --layers 1 2>/dev/null | sed 's/.* and/and/'
  "$KVTOOL" diff packed.kvz "$run" --layout-b packed 2>/dev/null | sed 's/ and .*: identical/: identical/'
  rm ./*.kvz ./*.npz
done
