# What is not read as a cache says what it is and why; compressing keeps the bytes all the same.
printf 'GGUF\003\000\000\000' > model.gguf
printf '\037\213\010\000' > cache.gz
printf '\211HDF\r\n\032\n' > cache.h5
head -c 100 /dev/zero > dynamo-kvbm-disk-cache-x1y2z3
head -c 100 /dev/zero > 0123abcd_org-model_0_1.bin
cp "$(find "$TESTDATA/golden/infinilm/bin" -name "*.bin" | sort | head -1)" weights.bin
for file in model.gguf cache.gz cache.h5 weights.bin dynamo-kvbm-disk-cache-x1y2z3 0123abcd_org-model_0_1.bin; do
  "$KVTOOL" inspect "$file" || echo "exit $?"
done
"$KVTOOL" compress -q cache.h5 -o cache.kvz
"$KVTOOL" decompress -q cache.kvz -o restored.h5
cmp cache.h5 restored.h5
