# States of real builds are restored byte for byte through other formats, each written for its build.
states="$TESTDATA/llamacpp/states"
trip() {  # STATE FORMAT TO [FLAGS]: converts a state to FORMAT and back
  local state="$1" format="$2" to="$3"
  shift 3
  rm -rf middle back.bin
  "$KVTOOL" convert "$states/$state.bin" --kv-heads 2 --to "$format" -o middle -qq
  "$KVTOOL" convert middle --to "$to" "$@" -o back.bin -qq
  cmp "$states/$state.bin" back.bin && echo "$state through $format: same bytes"
}
trip s260k-v050-f16.seq0 safetensors llama-state
trip s260k-v050-holes.seq0 npz llama-state
trip s260k-v050-shared-prefix.session torch-dict llama-session
trip s260k-b8352-2seq.session npy llama-session --target-version b8352
trip s260k-b5640-f16-vtrans.seq0 safetensors llama-state --target-version b5640
trip s260k-b3889-f16-vtrans.seq0 npz llama-state --target-version A
trip kjv3m-v050-q5_1-rotated.seq0 safetensors llama-state
trip synthetic-gemma3-iswa-v050.seq0 torch-dict llama-state
trip synthetic-qwen2vl-mrope-v050.seq0 npz llama-state
"$KVTOOL" compress "$states/s260k-b3889-f16-vtrans.seq0.bin" -o a.kvz -qq
"$KVTOOL" convert a.kvz --to llama-state --target-version b4753 -o a.bin -qq
cmp a.bin "$states/s260k-b3889-f16-vtrans.seq0.bin" && echo "through an archive: same bytes"
"$KVTOOL" compress "$states/synthetic-qwen2vl-mrope-b8352.seq0.bin" -o m.kvz -qq
"$KVTOOL" convert m.kvz --to llama-state --target-version D -o m.bin -qq
cmp m.bin "$states/synthetic-qwen2vl-mrope-b8352.seq0.bin" && echo "with the positions of M-RoPE"
# The written states hold the source's values: V transposed, a single sequence, and q5_1 as f16 (within 0.002).
"$KVTOOL" convert "$states/s260k-v050-f16.seq0.bin" --to llama-state --v-order transposed -o turned.bin -qq
"$KVTOOL" inspect turned.bin 2> /dev/null | grep 'v storage'
"$KVTOOL" diff "$states/s260k-v050-f16.seq0.bin" turned.bin | sed 's/.* and/and/'
"$KVTOOL" convert "$states/s260k-v050-shared-prefix.session.bin" --sequence 0 --to llama-state -o one.bin
"$KVTOOL" inspect one.bin 2> /dev/null | grep cells
"$KVTOOL" convert "$states/kjv3m-v050-q5_1-rotated.seq0.bin" --kv-heads 2 --dtype f16 --to llama-state -o half.bin -qq
"$KVTOOL" diff half.bin "$states/kjv3m-v050-q5_1-rotated.seq0.bin" --kv-heads 2 --atol 0.002 | tail -1 | sed 's/.*bin: //'
