# Queries move as the model rotates its keys: scaled, by layer, by given frequencies, and in the order of pairs that
# the file has. The "MLP" is the mean of a group, which does not depend on the pairs.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" gguf=model.gguf
"$KVTOOL" convert "$state" --kv-heads 4 --to npz -o engine.npz -qq
"$PYTHON" - "$TESTDATA/llamacpp/s260k-header.gguf" << 'PY'
import json, struct, sys
import numpy as np
header = open(sys.argv[1], "rb").read()  # ends among the tensors: here there are none
open("model.gguf", "wb").write(header[:8] + bytes(8) + header[16:])
factor, dim, layers = 4, 8, 5
shift = 64.0
def block(rows, cols, weight, bias):
    return struct.pack("<3I", rows, cols, 1) + struct.pack(f"<{rows * cols}f", *weight) + struct.pack(f"<{rows}f", *bias)
mean = [(1.0 / factor if c % dim == r else 0.0) for r in range(dim) for c in range(dim * factor)]
same = [(1.0 if c == r else 0.0) for r in range(dim) for c in range(dim)]
mlp = block(dim, dim * factor, mean, [shift] * dim) + block(dim, dim, same, [0.0] * dim) + block(dim, dim, same, [-shift] * dim)
with open("mean.bin", "wb") as file:
    file.write(struct.pack("<IIHH8I", 0x4B56434D, 1, 2, 0, layers, 0, dim, dim * factor, factor, 1, 6, 0))
    file.write(2 * layers * mlp)
engine, made = np.load("engine.npz"), {}
for layer in range(layers):
    k = engine[f"k_{layer}"].reshape(512, 4, 4, 2).swapaxes(2, 3).reshape(512, 4, 8)
    made[f"past_key_values.{layer}.key"] = k.swapaxes(0, 1)[None]
    made[f"past_key_values.{layer}.value"] = engine[f"v_{layer}"].swapaxes(0, 1)[None]
np.savez("hf.npz", **made)
config = dict(model_type="llama", num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=4, hidden_size=64, head_dim=8)
def save(name, **more):
    json.dump(dict(config, **more), open(name + ".json", "w"))
save("plain", rope_theta=1e4)
save("yarn", rope_theta=1e4, max_position_embeddings=256, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64))
save("layers", rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=dict(rope_type="linear", factor=8.0),
     layer_types=["sliding_attention"] * 4 + ["full_attention"])
save("longrope", rope_theta=1e4, max_position_embeddings=64, original_max_position_embeddings=32,
     rope_scaling=dict(type="longrope", short_factor=[1.0] * 4, long_factor=[2.0] * 4))
save("mrope", rope_theta=1e4, rope_scaling=dict(type="mrope", mrope_section=[1, 1, 2]))
open("freqs.txt", "w").write(" ".join(repr(float(np.float32(1) / np.float32(1e4 ** (i / 4)))) for i in range(4)))
open("half.txt", "w").write(" ".join(repr(0.5 * 1e4 ** (-i / 4)) for i in range(4)))
PY
run() {
  status=0
  "$KVTOOL" replay-mlp "$1" --weights mean.bin --json -q "${@:2}" > out.json || status=$?
  [ $status = 0 ] || { echo "exit $status"; return; }
  $VALIDATE < out.json > checked
  jq -c '.results[0] | [.quality.positions_moved] + [.quality.methods[] | select(.name == "mlp" or .name == "drop") | [.layers[].all.output_error.mean]]' out.json
}
# The results are equal, layer by layer, up to the order in which pairs are summed.
compare() { jq -ner --slurpfile a "$1" --slurpfile b "$2" \
  '[[$a[0], $b[0]] | map(.[1:]) | transpose[] | transpose[] | (.[0] - .[1] | fabs) < 1e-5] | if all then "the same" elif any then "some layers" else "another" end'; }
run "$state" --model "$gguf" > engine.out
run hf.npz --model "$gguf" > hf.out
echo "transformers' pairs: $(compare engine.out hf.out)"
run hf.npz --model "$gguf" --rope-style gptj > wrong.out
echo "other pairs: $(compare engine.out wrong.out)"
echo "a config does not know llama.cpp's pairs: $(run "$state" --model plain.json)"
run "$state" --model plain.json --rope-style gptj > config.out
echo "told: $(compare engine.out config.out)"
run hf.npz --model plain.json > config.out
echo "a config: $(compare engine.out config.out)"
run hf.npz --rope-freqs freqs.txt > freqs.out
echo "frequencies: $(compare engine.out freqs.out)"
run hf.npz --rope-freqs half.txt > half.out
echo "half of them: $(compare engine.out half.out)"
run hf.npz --model-config yarn.json > yarn.out
echo "yarn: $(compare engine.out yarn.out)"
run hf.npz --rope-base 1e4 --rope-scaling yarn:4,64 > flags.out
echo "by flags: $(compare yarn.out flags.out)"
run hf.npz --model-config layers.json > layers.out
echo "layers of one base and one of another: $(compare engine.out layers.out)"
# These caches do not have one set of frequencies: there are several, or three positions per token, or the header is cut
# before the factors.
run hf.npz --model-config longrope.json
"$KVTOOL" replay-mlp hf.npz --weights mean.bin --model mrope.json --dry-run -q > /dev/null
"$KVTOOL" replay-mlp hf.npz --weights mean.bin --model mrope.json > /dev/null
run hf.npz --model mrope.json | cut -c1-6
run hf.npz --model mrope.json --positions new-len
"$KVTOOL" replay-mlp hf.npz --weights mean.bin --model "$TESTDATA/llamacpp/s260k-header.gguf" > /dev/null
