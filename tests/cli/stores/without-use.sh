# A flag for reading a file is refused for a format without that choice, for an archive that was made with another
# value, and together with a flag that contradicts it. Each of several inputs takes the flags that apply to it.
states="$TESTDATA/llamacpp/states"
cp "$states/s260k-v050-f16.seq0.bin" state.bin
try() { echo "$ $*"; "$KVTOOL" "$@" -q 2>&1 > out.txt || echo "exit $?"; }
"$KVTOOL" convert state.bin --kv-heads 4 --to npz -o cache.npz -qq
for format in mnn-dump infinilm-dump safetensors; do
  "$KVTOOL" convert cache.npz --rope-pairs keep --to $format -o cache.$format -qq
done
head -c 32768 /dev/zero > plain.raw
raw="--raw f16:2LTHD:2,2,?,4,8"
for file in state.bin cache.mnn-dump cache.infinilm-dump "plain.raw $raw"; do
  try inspect $file --layout htd
  try inspect $file --batch 0
  try inspect $file --k-pattern 'k_{i}' --v-pattern 'v_{i}'
  try inspect $file --rotated yes
done
# These flags are accepted, because the format has the choice.
try inspect cache.npz --layout thd --k-pattern 'k_{i}' --v-pattern 'v_{i}' --rotated no
try inspect cache.mnn-dump --layout logical
try inspect state.bin --layout E
# Two flags that set the same property are refused.
try inspect cache.npz --from npz $raw
# An archive states how it was read, and flags have to agree.
for file in cache.npz cache.mnn-dump state.bin; do "$KVTOOL" compress $file -o $file.kvz -qq; done
try inspect cache.npz.kvz --layout thd
try inspect cache.npz.kvz --layout htd
try convert cache.npz.kvz --layout htd --to npy -o never
try decompress cache.npz.kvz --layout htd --to npy -o never
try inspect cache.npz.kvz --batch 0
try inspect cache.npz.kvz --batch 1
try inspect cache.mnn-dump.kvz --layout logical
try inspect cache.mnn-dump.kvz --layout packed
try inspect state.bin.kvz --layout E
try inspect cache.npz.kvz --k-pattern 'k_{i}' --v-pattern 'v_{i}'
try inspect cache.npz.kvz --k-pattern 'key_cache.{i}'
try inspect cache.npz.kvz --k-pattern 'k_{i}' --v-pattern 'w_{i}'
try inspect state.bin.kvz --k-pattern 'k_{i}'
test ! -e never
# An MLX cache names the class of every layer, which determines its arrays.
cp "$TESTDATA/engines/mlx/0.32.2/plain.safetensors" mlx.safetensors
try inspect mlx.safetensors --k-pattern '{i}.0' --v-pattern '{i}.1'
try inspect mlx.safetensors cache.npz --k-pattern 'k_{i}' --v-pattern 'v_{i}'
# An archive also states whether its cache is rotated, or leaves it open.
rotated="$states/kjv3m-v050-q4_0-rotated.seq0.bin"
"$KVTOOL" compress "$rotated" -o open.kvz -qq
"$KVTOOL" compress "$rotated" -o rotated.kvz --head-dim 64 -qq
try inspect open.kvz --rotated no
try inspect rotated.kvz --rotated yes
try inspect rotated.kvz --rotated no
try inspect cache.npz --rotated yes
try diff cache.npz state.bin --kv-heads 4 --rotated no
# A batch in an archive needs --batch when it is read, even if it is only inspected.
"$PYTHON" -c 'import numpy
k = numpy.random.default_rng(1).normal(size=(3, 2, 40, 8)).astype("f2")
numpy.savez("batch.npz", **{"key_cache.0": k, "value_cache.0": k + 1})'
"$KVTOOL" compress batch.npz -qq
"$KVTOOL" inspect batch.npz.kvz --batch 1 | grep -e batch -e layer
try inspect batch.npz.kvz --batch 3
# Each of several inputs takes the flags that its format has; a value that contradicts its own file is refused.
names="--k-pattern k_{i} --v-pattern v_{i}"
try inspect cache.npz state.bin cache.mnn-dump $names
try inspect batch.npz state.bin --batch 1
try inspect 'cache.[ns]*' $names
try inspect batch.npz state.bin --batch 3
mkdir folder && cp cache.npz state.bin folder
try inspect -r folder $names
try compress -r folder $names --output-dir archives
try diff cache.npz cache.mnn-dump $names
# A trace has one form, so a flag that chooses between forms is refused.
cp "$TESTDATA/golden/blend/pt/attentions.zip.pt" attentions.pt
cp -r "$TESTDATA/trace" .
try trace inspect attentions.pt --batch 0
try trace inspect attentions.pt --layout thd
try trace inspect trace/s260k --batch 0
try trace inspect trace/s260k --layout thd
