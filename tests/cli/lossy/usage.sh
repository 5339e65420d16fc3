# Wrong uses of compress --transform write nothing.
learn="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
flags="--kv-heads 4 --head-dim 8 --rope-base 10000 --rope-style gptj"
cp "$TESTDATA/lossy/s260k.kvx" model.kvx
cp "$TESTDATA/llamacpp/states/s260k-b5640-f16-vtrans.seq0.bin" cache.bin
refuse() {
  "$KVTOOL" compress "$@" -o none.kvz || echo "exit $?"
}
refuse cache.bin --transform model.kvx $flags
refuse cache.bin --ratio 4
refuse cache.bin --transform model.kvx --ratio 5 $flags
refuse cache.bin --transform model.kvx --ratio 4 --kv-heads 2 --head-dim 16 --rope-base 10000 --rope-style gptj
refuse cache.bin --transform model.kvx --ratio 4 --kv-heads 4 --head-dim 8 --rope-base 500000 --rope-style gptj
refuse cache.bin --transform model.kvx --ratio 4 $flags --level compat
refuse cache.bin --transform model.kvx --ratio 4 $flags --base "$learn"
refuse cache.bin --transform missing.kvx --ratio 4 $flags
refuse cache.bin --transform cache.bin --ratio 4 $flags
head -c 3000 model.kvx > cut.kvx
refuse cache.bin --transform cut.kvx --ratio 4 $flags
refuse "$learn" --transform model.kvx --ratio 4 $flags
refuse "$TESTDATA/llamacpp/states/kjv3m-b8352-q8_0.seq0.bin" --transform model.kvx --ratio 4 --kv-heads 4 --rope-base 10000 --rope-style gptj
echo text > text.txt
refuse text.txt --transform model.kvx --ratio 4 --from opaque
"$KVTOOL" convert cache.bin --kv-heads 4 --to npz -o cache.npz -q
refuse cache.npz --transform model.kvx --ratio 4 --rope-base 10000 --rope-style gptj
test -e none.kvz && echo written
# Heads and rotation that the cache does not record are those of the transform.
"$KVTOOL" compress cache.bin --transform model.kvx --ratio 4 $flags -q -o told.kvz
for told in "" "--kv-heads 4 --head-dim 8" "--rope-base 10000 --rope-style gptj"; do
  "$KVTOOL" compress cache.bin --transform model.kvx --ratio 4 $told -q -f -o silent.kvz && cmp told.kvz silent.kvz && echo the same archive
done
"$KVTOOL" compress "$learn" --transform model.kvx --ratio 8 $flags --allow-self -q -o own.kvz && "$KVTOOL" verify own.kvz -q && echo own
true
