# Flags supply what a file does not state. A flag that contradicts the file is refused with both values, whatever the
# format; one that agrees is accepted, and so is one that the file needs.
states="$TESTDATA/llamacpp/states"
try() {
  "$KVTOOL" inspect "$@" -qq --kv-heads 4 --head-dim 8 || echo "exit $?"
  "$KVTOOL" inspect "$@" -q --kv-heads 2 || echo "exit $?"
  "$KVTOOL" inspect "$@" -q --head-dim 16 || echo "exit $?"
  "$KVTOOL" inspect "$@" -q --input-dtype f8_e4m3 || echo "exit $?"
}
"$KVTOOL" convert "$states/s260k-v050-f16.seq0.bin" --kv-heads 4 --to npz -o cache.npz -qq
for format in npy safetensors torch torch-dict mnn-dump infinilm-dump; do
  "$KVTOOL" convert cache.npz --rope-pairs keep --to $format -o cache.$format -qq
done
"$KVTOOL" compress cache.safetensors -o cache.kvz -qq
for file in cache.*; do
  try $file 2>&1
done
head -c 32768 /dev/zero > plain.raw
echo raw
try --raw f16:2LTHD:2,2,?,4,8 plain.raw 2>&1
# A state has the type, and flags give the heads; a row that is not divisible by them is still bad data.
"$KVTOOL" inspect "$states/s260k-v050-f16.seq0.bin" --kv-heads 2 -qq
"$KVTOOL" inspect "$states/s260k-v050-f16.seq0.bin" --input-dtype bf16 -q 2>&1 || echo "exit $?"
"$KVTOOL" inspect cache.npz --input-dtype f99 -q 2>&1 || echo "exit $?"
# --input-dtype gives raw 16-bit integers their type.
"$PYTHON" -c 'import numpy
numpy.savez("bits.npz", k_0=numpy.zeros((5, 2, 8), "u2"), v_0=numpy.zeros((5, 2, 8), "u2"))'
"$KVTOOL" inspect bits.npz --input-dtype bf16 --layout thd | grep layer
"$KVTOOL" inspect bits.npz --input-dtype f8_e4m3 --layout thd -q 2>&1 || echo "exit $?"
# A flag may not contradict what the cache states about its rotation.
"$KVTOOL" convert "$states/kjv3m-v050-q4_0-rotated.seq0.bin" --head-dim 64 --to safetensors -o rotated.safetensors -qq
"$KVTOOL" inspect rotated.safetensors --rotated yes -qq
"$KVTOOL" inspect rotated.safetensors --rotated no -q 2>&1 || echo "exit $?"
# Every command that reads snapshots gives the same message.
"$KVTOOL" convert cache.npz --kv-heads 2 --to npy -o never 2>&1 || echo "exit $?"
test ! -e never
