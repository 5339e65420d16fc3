# A model file from a pipe is read once, for the heads, for RoPE, and for every input.
state="$TESTDATA/trace/s260k.seq0.bin"
echo '{"model_type": "llama", "num_hidden_layers": 5, "hidden_size": 64, "num_attention_heads": 8,
       "num_key_value_heads": 4, "rope_theta": 10000.0}' > config.json
quant() {
  "$KVTOOL" replay-quant "$state" --trace "$TESTDATA/trace/s260k" --k q8_0 --v q8_0 --rope-style gptj --json -q --model "$1"
}
quant config.json > file.json
cat config.json | quant - > pipe.json
for name in file pipe; do jq 'del(.tool, .. | .seconds?, .cpu_seconds?)' $name.json > $name; done
cmp file pipe && echo "the same"
cat config.json | "$KVTOOL" inspect "$state" "$state" --model - --json | jq -c '[.results[].layers[0].k.kv_heads]'
mkfifo model
cat config.json > model &
"$KVTOOL" inspect "$state" "$state" --model model --json | jq -c '[.results[].layers[0].k.kv_heads]'
# Standard input cannot be two inputs.
cat config.json | "$KVTOOL" inspect - --model - 2>&1 || echo "exit $?"
