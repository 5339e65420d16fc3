# Archives that need a profile find it by its name, by its hash and through --profile; without it they are refused
# clearly.
cp "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" cache.bin
cp "$TESTDATA/profiles/s260k.kvp" model.kvp
"$KVTOOL" compress cache.bin --profile model.kvp --deterministic --json-out said.json -q && grep -A6 '"profile": {' said.json
"$KVTOOL" inspect cache.bin.kvz | grep profile
"$KVTOOL" verify cache.bin.kvz --against cache.bin

echo "-- elsewhere, without it"
mkdir elsewhere && cp cache.bin.kvz elsewhere/a.kvz
"$KVTOOL" verify elsewhere/a.kvz || echo "exit $?"
"$KVTOOL" decompress elsewhere/a.kvz || echo "exit $?"
"$KVTOOL" convert elsewhere/a.kvz --kv-heads 4 --to npz -o none.npz || echo "exit $?"
"$KVTOOL" inspect --stats elsewhere/a.kvz > inspected || echo "exit $?"
ls none.npz elsewhere/a 2>&- && echo written
"$KVTOOL" decompress elsewhere/a.kvz --keep-going -q 2> lost || echo "exit $?"
grep -c 'the archive needs the profile' lost

echo "-- named, or under any name beside it"
"$KVTOOL" verify elsewhere/a.kvz --profile model.kvp
"$KVTOOL" convert elsewhere/a.kvz --profile model.kvp --kv-heads 4 --to npz -o some.npz
"$KVTOOL" train cache.bin cache.bin --name other -o elsewhere/first.kvp -q
"$KVTOOL" verify elsewhere/a.kvz || echo "exit $?"
"$KVTOOL" verify elsewhere/a.kvz --profile elsewhere/first.kvp || echo "exit $?"
cp model.kvp elsewhere/whatever.kvp
"$KVTOOL" decompress elsewhere/a.kvz -f -q -o back.bin && cmp back.bin cache.bin && echo restored
head -c 4000 model.kvp > elsewhere/whatever.kvp
"$KVTOOL" verify elsewhere/a.kvz -q || echo "exit $?"

echo "-- the golden archive, and the independent decoder"
"$KVTOOL" verify "$TESTDATA/profiles/cache.kvz"
if "$PYTHON" -c 'import numpy, zstandard' 2>&-; then
  "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" "$TESTDATA/profiles/cache.kvz" out.bin --profile model.kvp 2> decoder || cat decoder
  cmp out.bin "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"
  "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" "$TESTDATA/profiles/cache.kvz" out.bin 2> decoder && echo decoded
fi

echo "-- layers that a profile predicts from each other"
# layers.kvp is of version 2, whose regressions use neither the row itself nor a start.
for name in layers rows; do
  cp "$TESTDATA/profiles/$name.kvp" "$TESTDATA/profiles/$name.kvz" .
  "$KVTOOL" verify $name.kvz --against "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"
  if "$PYTHON" -c 'import numpy, zstandard' 2>&-; then
    "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" $name.kvz out.bin --profile $name.kvp 2> decoder || cat decoder
    cmp out.bin "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" && echo the independent decoder restores the same
  fi
done
"$KVTOOL" compress cache.bin --level max -q -o alone.kvz
"$KVTOOL" compress cache.bin --level max --profile rows.kvp --json -q -o across.kvz | jq -c '.results[0].profile'
test "$(wc -c < across.kvz)" -lt "$(wc -c < alone.kvz)" && echo smaller
"$KVTOOL" inspect across.kvz | grep -E '^  (profile|joined)'
"$KVTOOL" convert across.kvz --kv-heads 4 --to npz -q -o across.npz && "$KVTOOL" diff across.npz cache.bin --kv-heads 4 -q && echo the same values
mkdir apart && cp across.kvz apart/
"$KVTOOL" verify apart/across.kvz || echo "exit $?"
"$KVTOOL" verify apart/across.kvz --profile model.kvp || echo "exit $?"
"$KVTOOL" decompress apart/across.kvz --keep-going -q 2> apart/said || echo "exit $?"
grep -c 'the archive needs the profile' apart/said
"$KVTOOL" compress cache.bin --level max --joined-layers 1 --profile rows.kvp -q -o single.kvz
"$KVTOOL" inspect single.kvz | grep joined || echo every layer alone

echo "-- inside the archive"
"$KVTOOL" compress cache.bin --level max --profile rows.kvp --embed-profile --json -o inside.kvz 2>&- | jq -c '.results[0].profile'
echo $(($(wc -c < inside.kvz) - $(wc -c < across.kvz) - $(wc -c < rows.kvp))) bytes more
mkdir alone && cp inside.kvz alone/ && "$KVTOOL" verify alone/inside.kvz --against cache.bin
"$KVTOOL" inspect alone/inside.kvz | grep -E '^  profile'
"$KVTOOL" decompress alone/inside.kvz -q -o alone/back.bin && cmp alone/back.bin cache.bin && echo restored
"$KVTOOL" compress cache.bin --embed-profile -o none.kvz || echo "exit $?"
if "$PYTHON" -c 'import numpy, zstandard' 2>&-; then
  "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" alone/inside.kvz out.bin 2> decoder || cat decoder
  cmp out.bin cache.bin && echo the independent decoder restores the same
fi
# Damage inside the profile is found, and the profile's own file serves instead of it.
printf '\x55\x55' | dd of=alone/inside.kvz bs=1 seek=12000 conv=notrunc status=none
"$KVTOOL" verify alone/inside.kvz || echo "exit $?"
"$KVTOOL" decompress alone/inside.kvz -q -f -o alone/back.bin || echo "exit $?"
"$KVTOOL" decompress alone/inside.kvz --profile rows.kvp --keep-going -q -f -o alone/back.bin || echo "exit $?"
cmp alone/back.bin cache.bin && echo restored
head -c 30000 inside.kvz > alone/cut.kvz
"$KVTOOL" verify alone/cut.kvz > cut || echo "exit $?"

echo "-- beside a base that needs one, too"
"$KVTOOL" compress cache.bin --base cache.bin.kvz --profile model.kvp -q -o both.kvz && "$KVTOOL" verify both.kvz
cp both.kvz cache.bin.kvz elsewhere/ && rm elsewhere/*.kvp
"$KVTOOL" verify elsewhere/both.kvz || echo "exit $?"
"$KVTOOL" verify elsewhere/both.kvz --profile model.kvp

echo "-- what is no use"
"$KVTOOL" compress cache.bin --profile cache.bin -o none.kvz || echo "exit $?"
"$KVTOOL" compress cache.bin --profile model.kvp --level fast -o none.kvz || echo "exit $?"
"$KVTOOL" compress cache.bin --profile model.kvp --profile model.kvp -o none.kvz || echo "exit $?"
"$KVTOOL" compress cache.bin --profile missing.kvp -o none.kvz || echo "exit $?"
test -e none.kvz && echo written
true
