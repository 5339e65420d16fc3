# The cache has properties that no real one has all at once: f32 values exact in bf16, padding, repeats, dead channels.
"$PYTHON" "$SHARED_SUITE/made_cache.py"
set -- made.npz --layout thd --k-pattern 'k_{i}' --v-pattern 'v_{i}'
"$KVTOOL" analyze "$@"
"$KVTOOL" analyze "$@" --json --deterministic | $VALIDATE
"$KVTOOL" analyze "$@" --json |
  jq -c '.results[0].layers[0] | [.k.exact.is_bf16, .k.exact.is_f16, .k.narrow.dtype, (.k.narrow.ratio > 2), .k.structure.constant_channels, .v.structure]'
