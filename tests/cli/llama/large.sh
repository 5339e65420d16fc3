# Long layers from llama.cpp itself: runs where LLAMA_ENGINE (its libraries) and LLAMA_DATA are set.
if [ -z "${LLAMA_ENGINE:-}" ] || [ -z "${LLAMA_DATA:-}" ] || ! "$PYTHON" -c 'import numpy' 2> /dev/null; then
  echo "no engine"
  exit 77
fi
make() { "$PYTHON" "$SCRIPTS/make_large_states.py" "$1" --engine "$LLAMA_ENGINE" --models "$LLAMA_DATA/models" --only baby105-1x1024 --types "$2" > made; }
make a f16,bf16
make b f16
cmp a/baby105-1x1024-f16.bin b/baby105-1x1024-f16.bin
for type in f16 bf16; do
  "$KVTOOL" inspect "a/baby105-1x1024-$type.bin" | grep -q "K $type 1024 x 64 channels"
  "$KVTOOL" compress -qq "a/baby105-1x1024-$type.bin" -o x.kvz -f
  "$KVTOOL" verify -q x.kvz --against "a/baby105-1x1024-$type.bin"
done
