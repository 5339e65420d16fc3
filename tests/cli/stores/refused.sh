# Files that are not caches are identified and refused with a reason; compress archives their bytes all the same.
printf 'GGUF\003\000\000\000' > model.gguf
printf '\037\213\010\000' > cache.gz
printf '\211HDF\r\n\032\n' > cache.h5
head -c 100 /dev/zero > dynamo-kvbm-disk-cache-x1y2z3
head -c 100 /dev/zero > 0123abcd_org-model_0_1.bin
cp "$(find "$TESTDATA/golden/infinilm/bin" -name "*.bin" | sort | sed -n 1p)" weights.bin
for file in model.gguf cache.gz cache.h5 weights.bin dynamo-kvbm-disk-cache-x1y2z3 0123abcd_org-model_0_1.bin; do
  "$KVTOOL" inspect "$file" || echo "exit $?"
done
# These are models of engines that do not save caches: files, and folders of them.
mkdir trt ct2 genai exl blobs
printf 'ftrt\000\000' > trt/rank0.engine
printf '\006\000\000\000\027\000TransformerDecoderSpec\000\010' > ct2/model.bin
printf '\010\010\022\007pytorch\032\0032.3' > genai/model.onnx
echo '{"quantization_config": {"quant_method": "exl3"}}' > exl/config.json
cp model.gguf blobs/sha256-0a1b
echo '{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}' > latest
printf 'lmgg\000\000' > ggml-base.bin
for file in trt trt/rank0.engine ct2 ct2/model.bin genai/model.onnx exl blobs/sha256-0a1b latest ggml-base.bin; do
  "$KVTOOL" inspect "$file" || echo "exit $?"
done
"$KVTOOL" compress -q cache.h5 -o cache.kvz
"$KVTOOL" decompress -q cache.kvz -o restored.h5
cmp cache.h5 restored.h5
