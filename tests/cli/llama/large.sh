# The long layers come from llama.cpp itself; npm fetches its libraries once for each build folder.
make() {
  "$PYTHON" "$SCRIPTS/make/large_states.py" "$1" --fetch "$(dirname "$KVTOOL")/../engines" --models "$TESTDATA/models" \
    --only stories260K-1x2048 --types "$2"
}
make a f16,bf16
make b f16
cmp a/stories260K-1x2048-f16.bin b/stories260K-1x2048-f16.bin
for type in f16 bf16; do
  "$KVTOOL" inspect "a/stories260K-1x2048-$type.bin" | grep -q "K $type 2048 x 32 channels"
  "$KVTOOL" compress -qq "a/stories260K-1x2048-$type.bin" -o x.kvz -f
  "$KVTOOL" verify -q x.kvz --against "a/stories260K-1x2048-$type.bin"
done
