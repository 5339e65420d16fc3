# An archive with a base at level max, whose layers are also coded with the layers before them: inspect shows this;
# the archive needs the base and refuses another one.
"$KVTOOL" decompress -q "$TESTDATA/references/four.kvz" -o base
"$KVTOOL" decompress -q "$TESTDATA/references/neighbours.kvz" -o cache
"$KVTOOL" compress cache --base base --level max -o by.kvz 2>&1 | grep -o 'chunks .*'
"$KVTOOL" compress cache --base base --level max --joined-layers 1 -o apart.kvz 2>&1 | grep -o 'chunks .*'
"$KVTOOL" inspect by.kvz | grep -E 'joined|reference'
"$KVTOOL" decompress -q by.kvz -o back && cmp back cache
for from in by.kvz cache; do "$KVTOOL" convert -q "$from" --layers 2 --to npz -o "$from.npz"; done
"$KVTOOL" diff by.kvz.npz cache.npz
"$KVTOOL" verify -q by.kvz
mkdir alone && cp by.kvz alone/
"$KVTOOL" decompress alone/by.kvz -o x || echo "exit $?"
"$KVTOOL" decompress alone/by.kvz --base cache -o x || echo "exit $?"
# One bit of K of the base's first layer differs: the following layers are predicted from its errors.
"$PYTHON" - <<'EOF'
content = bytearray(open("base", "rb").read())
header = 8 + int.from_bytes(content[:8], "little")
content[header + 124 * 8 + 1000] ^= 1
open("other", "wb").write(content)
EOF
"$KVTOOL" verify alone/by.kvz --base other || echo "exit $?"
"$KVTOOL" decompress alone/by.kvz --base other -q -o x || echo "exit $?"
test ! -e x
