# kvtool reads what numpy saves, and numpy loads what kvtool writes: equal, bit for bit, in every direction.
"$PYTHON" "$SHARED_SUITE/numpy_caches.py"
for name in stored deflated swapped; do
  "$KVTOOL" convert $name.npz --to npz -o $name.out.npz -q
  "$KVTOOL" convert $name.npz --to npy -o $name.npy -q
  "$KVTOOL" convert $name.npy --to safetensors -o $name.safetensors -q
  "$KVTOOL" convert $name.safetensors --to npz -o $name.back.npz -q
done
"$KVTOOL" inspect stored.npz --json | $VALIDATE
"$PYTHON" "$SHARED_SUITE/compare_containers.py"
