# Every key is the same vector, rotated to its position. Undoing the model's own rotation, with its scaling, layer by
# layer, leaves almost nothing to code.
cat > make.py <<'PYTHON_END'
import json
import numpy as np
rng = np.random.default_rng(4)
L, T, H, D = 6, 200, 2, 16
def rotated(inv, factor=1.0):
    a = np.arange(T)[:, None, None] * np.asarray(inv)
    k = np.broadcast_to(rng.standard_normal((1, H, D)), (T, H, D))
    x, y = k[..., :D // 2], k[..., D // 2:]
    c, s = np.cos(a) * factor, np.sin(a) * factor
    return np.concatenate([x * c - y * s, y * c + x * s], -1).astype(np.float16)
v = rng.standard_normal((L, T, H, D)).astype(np.float16)
def save(name, inv, factor=1.0):
    np.savez(name, **{f"k_{i}": rotated(inv(i), factor) for i in range(L)}, **{f"v_{i}": v[i] for i in range(L)})
plain = lambda base: base ** (-np.arange(D // 2) * 2 / D)
config = dict(model_type="gemma3_text", num_hidden_layers=L, num_attention_heads=4, num_key_value_heads=H, head_dim=D, hidden_size=64)
def told(name, **more):
    json.dump(dict(config, **more), open(name, "w"))
save("plain.npz", lambda i: plain(1e4))
told("plain.json", rope_theta=1e4)
# Gemma 3: windowed layers at base 1e4; every sixth at 1e6 and eight times slower.
save("gemma.npz", lambda i: plain(1e6) / 8 if i == 5 else plain(1e4))
told("gemma.json", rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=dict(rope_type="linear", factor=8.0))
pair = lambda turns: D * np.log(64 / (turns * 2 * np.pi)) / (2 * np.log(1e4))
low, high = max(np.floor(pair(32)), 0), min(np.ceil(pair(1)), D - 1)
ramp = np.clip((np.arange(D // 2) - low) / (high - low), 0, 1)
save("yarn.npz", lambda i: plain(1e4) * (1 - ramp) + plain(1e4) / 16 * ramp, 0.1 * np.log(16) + 1)
told("yarn.json", model_type="qwen3", rope_theta=1e4, rope_scaling=dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=64))
longer = [1.5 + i for i in range(D // 2)]
save("long.npz", lambda i: plain(1e4) / longer, 1.2)
told("long.json", model_type="phi3", rope_theta=1e4, max_position_embeddings=64, original_max_position_embeddings=32,
     rope_scaling=dict(type="longrope", short_factor=[1.0] * 8, long_factor=longer))
save("dynamic.npz", lambda i: plain(1e4 * (2 * T / 32 - 1) ** (D / (D - 2))))
told("dynamic.json", model_type="llama", rope_theta=1e4, max_position_embeddings=32, rope_scaling=dict(rope_type="dynamic", factor=2.0))
# Llama 3: wavelengths longer than the original context are stretched, those in between are mixed.
wave = 2 * np.pi / plain(5e5)
t = np.clip((256 / wave - 1) / 3, 0, 1)
save("llama3.npz", lambda i: (1 - t) * plain(5e5) / 8 + t * plain(5e5))
told("llama3.json", model_type="llama", rope_theta=5e5, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
     high_freq_factor=4.0, original_max_position_embeddings=256))
given = rng.uniform(0.01, 1, D // 2)
save("given.npz", lambda i: given)
np.save("given.npy", given)
told("mrope.json", rope_theta=1e4, rope_scaling=dict(type="mrope", mrope_section=[2, 3, 3]))
PYTHON_END
$PYTHON make.py
# Prints the layers with fewer bits per value than noise has, by tensors and by rows of the dumps.
run() {
  status=0
  "$KVTOOL" analyze $1.npz --layout thd --level compat --distribution --json -q "${@:2}" > out.json || status=$?
  [ $status = 0 ] || { echo "$1: exit $status"; return; }
  $VALIDATE < out.json > checked
  jq -rc --arg name "$1" '.results[0] | "\($name): \([.layers[].k.unrotated // [{}, {models: []}] | .[1].models | map(.bits + .table_bits) | min // 99 | select(. < 5)] | length) of \(.layers | length) layers, \([.distribution.rows[] | select((.k_rope_inv_half_zstd_ratio // 0) > 3)] | length) of \(.distribution.rows | length) rows"' out.json
}
for name in plain gemma yarn long dynamic llama3; do run $name --model-config $name.json; done
run given --rope-freqs given.npy
run yarn --rope-base 1e4 --rope-scaling yarn:16,64
run dynamic --rope-theta 1e4 --rope-scaling dynamic:2,32
# A wrong rotation is visible in the figures, and none is guessed.
run gemma --rope-theta 1e4
run yarn --rope-base 1e4
run long --model plain.json
run dynamic --model plain.json
run llama3 --rope-theta 5e5
run plain --rope-theta 1e4 --rope-dim 8
run plain --rope-theta 1e4 --rope-dim 32
run plain
run plain --model mrope.json
"$KVTOOL" analyze plain.npz --layout thd --level compat --model mrope.json > /dev/null
