# Models whose RoPE is scaled or differs by layer: unrotated chunks, rotated by the model's rule, equal the full run's
# keys.
"$PYTHON" "$SHARED_SUITE/scaled_caches.py"
run() {
  status=0
  "$KVTOOL" replay-blend --full $1.npz --layout thd --old old.npz --old-layout thd --old-rope unrotated --chunk-lens 20,20 --json -q "${@:2}" > out.json || status=$?
  [ $status = 0 ] || { echo "$1: exit $status"; return; }
  $VALIDATE < out.json
  jq -c '.results[0] | [.model.rope.scaling, .model.rope.theta, .model.rope.layer_thetas, ([.layers[].dev_k.rel_max] | max | if . < 1e-5 then "same keys" else . end)]' out.json
}
run gemma --model-config gemma.json
run yarn --rope-base 1e4 --rope-scaling yarn:4,64
run long --model long.json
run dynamic --rope-base 1e4 --rope-scaling dynamic:2,32
run given --rope-freqs given.npy
run given --rope-freqs given.txt
# A wrong rotation is visible.
run gemma --rope-base 1e6 | grep -q "same keys" && echo "not told apart"
run gemma --model mrope.json
run gemma --rope-base 1e4 --rope-scaling mrope
echo "import" > words.txt
run gemma --rope-freqs words.txt
