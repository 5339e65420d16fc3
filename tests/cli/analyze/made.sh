# What no real cache shows at once: f32 that is exactly bf16, padding, repeats, dead channels.
$PYTHON - <<'P'
import numpy as np
rng = np.random.default_rng(7)
k = rng.standard_normal((64, 2, 16)).astype(np.float32)
k = ((k * 1e9).view(np.uint32) & 0xffff0000).view(np.float32)
k[:, 0, 3] = 1.5
v = rng.standard_normal((64, 2, 16)).astype(np.float32)
v[10:20] = v[0:10]
v[60:] = 0
np.savez("made.npz", k_0=k, v_0=v)
P
set -- made.npz --layout thd --k-pattern 'k_{i}' --v-pattern 'v_{i}'
"$KVTOOL" analyze "$@"
"$KVTOOL" analyze "$@" --json --deterministic | $VALIDATE
"$KVTOOL" analyze "$@" --json |
  jq -c '.layers[0] | [.k.exact.is_bf16, .k.exact.is_f16, .k.narrow.dtype, (.k.narrow.ratio > 2), .k.structure.constant_channels, .v.structure]'
