# Tests archives whose layers are coded with the layers before them: kvtool and the independent decoder read those of
# released versions, inspect shows them, one of the layers can be extracted, and damage names the layers that are lost.
folder="$TESTDATA/layers"
test "$(cd "$folder" && sha256sum -c --quiet SHA256SUMS 2>&1)" = "" && echo unchanged
restored() { sha256sum < "$1" | cut -c -64; }
while read -r name wanted; do
  "$KVTOOL" decompress -q -f "$folder/$name" -o restored.bin
  test "$(restored restored.bin)" = "$wanted" || echo "$name differs"
done < "$folder/contents"
"$KVTOOL" inspect "$folder/f16.kvz" | grep joined
"$KVTOOL" decompress -q -f "$folder/f16.kvz" -o f16.bin
"$KVTOOL" compress f16.bin --level max --joined-layers 1 -o apart.kvz 2>&1 | grep -o 'chunks .*'
"$KVTOOL" compress f16.bin --level max --joined-layers 2 -o two.kvz 2>&1 | grep -o 'chunks .*'
"$KVTOOL" inspect two.kvz | grep joined
for from in "$folder/f16.kvz" f16.bin; do "$KVTOOL" convert -q "$from" --layers 2 --to llama-state -f -o part; restored part; done | uniq -c | cut -c -8
"$KVTOOL" compress f16.bin --joined-layers 17 -o no.kvz > said 2>&1 || sed -n 1p said
# One byte of K of the first layer: all three layers depend on it.
"$KVTOOL" compress f16.bin --level max --joined-layers 8 -q -o lost.kvz
offset=$("$PYTHON" -c 'import mmap, sys; data = open(sys.argv[1], "rb").read(); print([at for at in range(len(data)) if data[at:at + 4] == b"KVZr"][2] + 400)' lost.kvz)
printf '\252' | dd of=lost.kvz bs=1 seek="$offset" conv=notrunc status=none
{ "$KVTOOL" verify lost.kvz || true; } | sed 's/lost.kvz: //; s/ (offset.*//; s/[0-9a-f]\{16\}/HASH/g'
"$KVTOOL" decompress lost.kvz --keep-going -f -o partly.bin > said 2>&1 || echo "status $?"
"$PYTHON" -c 'import numpy, zstandard' 2>&- || exit 0
while read -r name wanted; do
  "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" "$folder/$name" decoded.bin 2> said || cat said
  test "$(restored decoded.bin)" = "$wanted" || echo "$name decodes to other bytes"
done < "$folder/contents"
