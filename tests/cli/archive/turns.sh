# Interleaved rows of several sequences are sorted by sequence and position before they are coded. Tests that they are
# restored exactly, that inspect reports the order, that parts can be extracted, and that damage is located.
archives="$TESTDATA/archives/0.2.0-next"
"$KVTOOL" decompress -q "$archives/by-turns.max.kvz" -o cache.safetensors
for level in fast default high max; do
  "$KVTOOL" compress cache.safetensors --level $level -o $level.kvz 2>&1 | grep -o 'rows of .*' || echo "$level: rows as they are"
  "$KVTOOL" verify $level.kvz --against cache.safetensors
  "$KVTOOL" decompress -q $level.kvz -o $level.back && cmp $level.back cache.safetensors
done
"$KVTOOL" inspect max.kvz | grep -E 'rows|cells'
echo "-- a part"
for from in cache.safetensors max.kvz; do "$KVTOOL" convert -q $from --layers 1 --tokens 20:50 --to npz -o "part of $from.npz"; done
"$KVTOOL" diff part*cache* part*max*
echo "-- damage costs the chunk that it is in"
offset=$("$PYTHON" -c 'import sys; data = open(sys.argv[1], "rb").read(); print([at for at in range(len(data)) if data[at:at + 4] == b"KVZr"][2] + 400)' default.kvz)
printf '\252' | dd of=default.kvz bs=1 seek="$offset" conv=notrunc status=none
{ "$KVTOOL" verify default.kvz || true; } | sed 's/ (offset.*//; s/[0-9a-f]\{16\}/HASH/g'
"$KVTOOL" decompress -q default.kvz --keep-going -o rest > said 2>&1 || echo "status $?"
{ cmp -l rest cache.safetensors || true; } | "$PYTHON" -c 'import sys; at = [int(line.split()[0]) for line in sys.stdin]; print("differs within", max(at) - min(at) < 90 * 48)'
echo "-- who measures what an archive would be sorts, too, and tries heads of blocks apart"
cp "$TESTDATA/llamacpp/states/kjv3m-v050-q5_1-rotated.seq0.bin" blocks.bin
"$PYTHON" "$SHARED_SUITE/check_same_path.py" "$KVTOOL" cache.safetensors blocks.bin
