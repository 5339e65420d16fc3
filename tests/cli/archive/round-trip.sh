# A file and a folder are restored unchanged, through files and through pipes; every report is valid.
"$PYTHON" "$SHARED_SUITE/make.py" a.bin 3
raw=(--raw f16:2LTHD:2,4,?,8,64)
"$KVTOOL" compress -q "${raw[@]}" a.bin
"$KVTOOL" verify a.bin.kvz
"$KVTOOL" verify a.bin.kvz --against a.bin
"$KVTOOL" decompress -q a.bin.kvz -o b.bin
cmp a.bin b.bin
"$KVTOOL" decompress --test a.bin.kvz

"$KVTOOL" compress -q "${raw[@]}" -c - < a.bin > piped.kvz
cmp a.bin.kvz piped.kvz
"$KVTOOL" decompress -q - < piped.kvz | cmp - a.bin
"$KVTOOL" verify - < piped.kvz

mkdir -p tree/sub
head -c 100 a.bin > tree/sub/part
: > tree/empty
"$KVTOOL" compress -q tree/ --from opaque
"$KVTOOL" verify tree.kvz --against tree
mv tree original
"$KVTOOL" decompress -q tree.kvz
diff -r tree original

"$KVTOOL" compress -q -f "${raw[@]}" a.bin --json 2>&- | "$PYTHON" "$SHARED_SUITE/../validate.py"
"$KVTOOL" decompress -q -f a.bin.kvz --json 2>&- | "$PYTHON" "$SHARED_SUITE/../validate.py"
"$KVTOOL" verify a.bin.kvz tree.kvz --json 2>&- | "$PYTHON" "$SHARED_SUITE/../validate.py"
"$KVTOOL" inspect a.bin.kvz --json 2>&- | "$PYTHON" "$SHARED_SUITE/../validate.py"
"$KVTOOL" inspect a.bin.kvz
