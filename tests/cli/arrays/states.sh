# llama.cpp states of every kind are converted to arrays and back: quantised blocks as bytes, transposed V, two
# caches, several streams.
heads="--kv-heads 2"
states="$TESTDATA/llamacpp/states"
for state in kjv3m-b8352-q8_0.seq0 s260k-b3889-f16-vtrans.seq0 s260k-v050-bf16.seq0 s260k-v050-shared-prefix.session \
    synthetic-gemma3-iswa-v050.seq0; do
  "$KVTOOL" convert "$states/$state.bin" $heads --to npy -o a.npy -qq
  "$KVTOOL" convert "$states/$state.bin" $heads --to safetensors -o a.safetensors -qq
  "$KVTOOL" convert a.safetensors --to npz -o a.npz -qq
  "$KVTOOL" convert a.npz --to npy -o b.npy -qq
  for file in a.npy/*.npy; do cmp "$file" "b.npy/$(basename "$file")"; done
  "$KVTOOL" inspect "$states/$state.bin" $heads 2> /dev/null | grep -e layer -e cells > expected
  "$KVTOOL" inspect a.npz | grep -e layer -e cells | diff expected /dev/stdin
  echo "$state: $(ls a.npy | wc -l) files, equal"
  rm -r a.npy b.npy a.safetensors a.npz
done
