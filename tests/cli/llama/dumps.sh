# A state is converted to the dumps of other engines and back: the values are equal, or the missing option is asked
# for.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" gguf="$TESTDATA/llamacpp/s260k-header.gguf"
for dump in mnn-dump infinilm-dump; do
  for heads in "--kv-heads 4" "--model $gguf"; do
    "$KVTOOL" convert "$state" $heads --to $dump -o there -f -qq
    for back in "" "--model $gguf"; do
      "$KVTOOL" convert there --to llama-state $back -o back.bin -f -qq
      "$KVTOOL" diff "$state" back.bin -q && echo "$dump: the state's own values"
    done
  done
  # The dump and the state convert to the same file for transformers.
  "$KVTOOL" convert "$state" --to torch --model "$gguf" -o direct.pt -f -qq
  "$KVTOOL" convert there --to torch --model "$gguf" -o by-dump.pt -f -qq
  "$KVTOOL" diff direct.pt by-dump.pt -q && echo "$dump: as torch has them"
  "$KVTOOL" convert direct.pt --to $dump -o there -f -qq
  "$KVTOOL" convert there --to llama-state --model "$gguf" -o back.bin -f -qq
  "$KVTOOL" diff "$state" back.bin -q && echo "$dump: and from torch"
  "$KVTOOL" convert direct.pt --to $dump --rope-pairs halves:neighbours -o there -f -qq
  "$KVTOOL" convert there --to llama-state --model "$gguf" -o back.bin -f -qq
  "$KVTOOL" diff "$state" back.bin -q && echo "$dump: and reordered before"
  "$KVTOOL" compress there -o there.kvz -f -qq
  "$KVTOOL" convert there.kvz --to llama-state --model "$gguf" -o back.bin -f -qq
  "$KVTOOL" diff "$state" back.bin -q && echo "$dump: and from an archive"
done
"$KVTOOL" inspect there | grep "RoPE pairs"
echo "--- what the engines wrote themselves"
for dump in mnn/dumps/case_fp16_h8_l1_fa64 infinilm/dump_kv; do
  dump="$TESTDATA/golden/$dump"
  for to in torch llama-state; do
    for how in "" "--rope-pairs halves"; do
      "$KVTOOL" convert "$dump" --to $to $how -o refused || echo "exit $?"
    done
    "$KVTOOL" convert "$dump" --to $to --rope-pairs halves:neighbours -o told -f -qq && rm -r told && echo "told: written"
  done
  "$KVTOOL" convert "$dump" --to npz -o kept.npz -f -qq
  "$KVTOOL" convert kept.npz --to torch -o refused || echo "exit $?"
done
echo "--- keys from before RoPE"
"$KVTOOL" convert "$state" --kv-heads 4 --to safetensors -o plain.safetensors -qq
"$PYTHON" -c "
data = open('plain.safetensors', 'rb').read()
size = int.from_bytes(data[:8], 'little')
head = data[8 : 8 + size].replace(b'\"kvtool.key_rotation\":\"rotated\"', b'\"kvtool.key_rotation\":\"unrotated\"')
open('plain.safetensors', 'wb').write(len(head).to_bytes(8, 'little') + head + data[8 + size :])"
for to in torch llama-state mnn-dump infinilm-dump; do
  "$KVTOOL" convert plain.safetensors --to $to -o refused || echo "exit $?"
done
ls refused 2> /dev/null || echo "nothing written"
