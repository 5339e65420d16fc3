# Small files of a folder are coded together. Each is restored, and damage names every file that it affects.
cat > make.py <<'PY'
import pathlib, numpy
random = numpy.random.default_rng(3)
walk = numpy.cumsum(0.2 * random.standard_normal((4, 256, 32)), axis=1) + random.standard_normal((4, 1, 32))
folder = pathlib.Path("pages")
folder.mkdir()
for page in range(64):
    (folder / f"{(page * 37) % 64:02}.data").write_bytes(walk[:, 4 * page:4 * page + 4].astype("<f2").tobytes())
names = [f"{(page * 37) % 64:02}.data" for page in range(64)]
pathlib.Path("order.txt").write_text("\n".join(names) + "\n")
PY
"$PYTHON" -c 'import numpy' 2>&- || { echo "$PYTHON has no numpy"; exit 77; }
"$PYTHON" make.py
raw="--raw f16:L2THD:2,2,4,2,16 --order order.txt"
"$KVTOOL" compress pages $raw -q -o solid.kvz --json-out said.json
grep -A3 '"solid"' said.json
"$KVTOOL" compress pages $raw -q --no-solid -o apart.kvz
"$PYTHON" -c 'import os; a, b = map(os.path.getsize, ("solid.kvz", "apart.kvz")); print("less than half:", a * 2 < b)'
"$KVTOOL" inspect solid.kvz | grep -E 'solid|layers'
"$KVTOOL" verify solid.kvz --against pages
"$KVTOOL" decompress solid.kvz -q -o back && diff -r back pages && echo the same files
"$KVTOOL" decompress solid.kvz -q --to npz --layers 1 --kv v --tokens 100:110 -o part.npz && echo a part

echo "-- no reader knows them"
"$KVTOOL" compress pages --from opaque -q -o opaque.kvz
"$KVTOOL" verify opaque.kvz --against pages

echo "-- the independent decoder"
if "$PYTHON" -c 'import numpy, zstandard' 2>&-; then
  for archive in solid opaque; do
    "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" $archive.kvz by-python 2> said || cat said
    diff -r by-python pages && rm -r by-python
  done
fi

echo "-- one damaged chunk"
"$PYTHON" - <<'PY'
data = bytearray(open("solid.kvz", "rb").read())
data[len(data) // 2] ^= 1
open("solid.kvz", "wb").write(data)
PY
"$KVTOOL" verify solid.kvz > said || echo "exit $?"
grep -c 'lost: bytes .* of [0-9]*.data: layer' said
tail -1 said
"$KVTOOL" decompress solid.kvz -q -o none 2> said || echo "exit $?"
test -e none && echo written
"$KVTOOL" decompress solid.kvz --keep-going -q -o rest 2> said || echo "exit $?"
ls rest | wc -l
true
