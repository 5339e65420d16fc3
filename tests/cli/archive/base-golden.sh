# kvtool and the independent decoder read archives with references that released versions wrote.
folder="$TESTDATA/references"
test "$(cd "$folder" && sha256sum -c --quiet SHA256SUMS 2>&1)" = "" && echo unchanged
restored() { sha256sum < "$1" | cut -c -64; }
while read -r name wanted bases; do
  "$KVTOOL" decompress -q -f "$folder/$name" -o restored.bin
  test "$(restored restored.bin)" = "$wanted" || echo "$name differs"
done < "$folder/contents"
"$PYTHON" -c 'import numpy, zstandard' 2>&- || exit 0
while read -r name wanted bases; do
  "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" "$folder/$name" decoded.bin $(for base in $bases; do echo "--base $folder/$base"; done) 2> said || cat said
  test "$(restored decoded.bin)" = "$wanted" || echo "$name decodes to other bytes"
done < "$folder/contents"
