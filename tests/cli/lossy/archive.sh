# Every command reports the loss of an archive of approximated values, and calls no other archive lossy.
learn="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
flags="--kv-heads 4 --head-dim 8 --rope-base 10000 --rope-style gptj"
cp "$TESTDATA/lossy/s260k.kvx" model.kvx
cp "$TESTDATA/llamacpp/states/s260k-b5640-f16-vtrans.seq0.bin" cache.bin
"$KVTOOL" compress cache.bin --transform model.kvx --ratio 4 $flags --json-out said.json 2>&1 | sed -e "s|, [0-9.]* [KMG]iB/s||"
$VALIDATE < said.json
jq -c '.results[0] | .output, .params.level, (.lossy | .file, .model, .ratio, .first_exact, .last_exact, (.layers | length), .k.relative_error < 0.5, .v.relative_error < 0.9)' said.json
test "$(jq -r '.results[0].inputs[0].xxh3' said.json)" = "$(jq -r '.results[0].lossy.original_xxh3' said.json)" && echo same original

echo "-- readers"
"$KVTOOL" inspect cache.bin.lossy.kvz | grep -c LOSSY
"$KVTOOL" inspect cache.bin.lossy.kvz --json | jq -c '.results[0].facts | has("lossy"), has("original")'
"$KVTOOL" doctor cache.bin.lossy.kvz | grep -c LOSSY
"$KVTOOL" verify cache.bin.lossy.kvz | sed -e 's/LOSSY.*/LOSSY/'
"$KVTOOL" verify cache.bin.lossy.kvz --against cache.bin | sed -e 's/LOSSY.*/LOSSY/'
"$KVTOOL" verify cache.bin.lossy.kvz --against cache.bin --json > verified.json && $VALIDATE < verified.json
jq -c '.results[0] | .verdict, (.lossy | has("hash")), .beyond' verified.json
"$KVTOOL" decompress cache.bin.lossy.kvz -q -o back.bin
cmp -s back.bin cache.bin || echo other bytes
"$KVTOOL" verify cache.bin.lossy.kvz --against back.bin -q || echo "exit $?"
"$KVTOOL" diff cache.bin back.bin -q || echo "exit $?"
"$KVTOOL" diff back.bin cache.bin.lossy.kvz -q && echo the archive reads as what it restores
"$KVTOOL" decompress cache.bin.lossy.kvz --to safetensors --layers 3 --tokens 50:60 --kv-heads 4 -q -o part.safetensors && ls part.safetensors
"$KVTOOL" compress back.bin -q && "$KVTOOL" verify back.bin.kvz --json | jq -c '.results[0] | has("lossy")'
if "$PYTHON" -c 'import numpy, zstandard' 2>&-; then
  "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" cache.bin.lossy.kvz out.bin --transform model.kvx 2> decoder || cat decoder
  cmp out.bin back.bin && echo the independent decoder restores the same
fi

echo "-- the golden archive, and the same values again"
cp "$TESTDATA/lossy/cache.lossy.kvz" golden.kvz
"$KVTOOL" verify golden.kvz --against cache.bin
"$KVTOOL" decompress golden.kvz -q -o golden.bin
"$KVTOOL" compress cache.bin --transform model.kvx --ratio 8 $flags -q -o eight.kvz
"$KVTOOL" decompress eight.kvz -q -o eight.bin && cmp eight.bin golden.bin && echo the same approximation
if "$PYTHON" -c 'import numpy, zstandard' 2>&-; then
  "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" golden.kvz out.bin --transform model.kvx 2> decoder || cat decoder
  cmp out.bin golden.bin && echo the independent decoder restores the same
  "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" golden.kvz out.bin 2> decoder && echo decoded
fi

echo "-- another original"
"$PYTHON" - <<'END'
import pathlib
data = bytearray(pathlib.Path("cache.bin").read_bytes())
data[40000] ^= 0x40
data[40001] ^= 0x40  # the largest bit of the exponent, whichever byte has it
pathlib.Path("other.bin").write_bytes(data)
END
"$KVTOOL" verify cache.bin.lossy.kvz --against other.bin > verified || echo "exit $?"
sed -e 's/LOSSY.*/LOSSY/' verified
"$KVTOOL" verify cache.bin.lossy.kvz --against other.bin --json > verified.json || echo "exit $?"
$VALIDATE < verified.json
jq -c '.results[0] | .verdict, (.beyond[] | [.layer, .side])' verified.json

echo "-- elsewhere, without the transform"
mkdir elsewhere && cp cache.bin.lossy.kvz elsewhere/a.kvz
"$KVTOOL" verify elsewhere/a.kvz || echo "exit $?"
"$KVTOOL" decompress elsewhere/a.kvz -o none.bin || echo "exit $?"
"$KVTOOL" inspect elsewhere/a.kvz | grep -c LOSSY
"$KVTOOL" doctor elsewhere/a.kvz > doctored || echo "exit $?"
grep -c TRANSFORM doctored
"$KVTOOL" verify elsewhere/a.kvz --transform model.kvx -q && echo given
"$KVTOOL" convert elsewhere/a.kvz -q --kv-heads 4 --to npz -o none.bin || echo "exit $?"
"$KVTOOL" convert elsewhere/a.kvz -q --transform model.kvx --kv-heads 4 --to npz -o some.npz && ls some.npz
"$KVTOOL" diff elsewhere/a.kvz back.bin --transform model.kvx -q && echo the same values
"$KVTOOL" inspect back.bin --transform model.kvx || echo "exit $?"
"$KVTOOL" inspect elsewhere/a.kvz --transform absent.kvx || echo "exit $?"
"$KVTOOL" train "$learn" --transform kvtc $flags --keep-first 2 --keep-last 8 --name other --ratio 4 -o elsewhere/other.kvx -q
"$KVTOOL" verify elsewhere/a.kvz -q || echo "exit $?"
"$KVTOOL" verify elsewhere/a.kvz --transform elsewhere/other.kvx || echo "exit $?"
cp model.kvx elsewhere/renamed.kvx
"$KVTOOL" verify elsewhere/a.kvz -q && echo found by its hash
test -e none.bin && echo written
true
