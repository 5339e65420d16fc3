# Pickles from numpy, of any protocol, byte order and axis order, give the same as npz.
"$PYTHON" "$SHARED_SUITE/pickled_caches.py"
"$KVTOOL" convert -q cache.npz --to safetensors -o expected.safetensors
for name in c0 c1 c2 c3 c4 c5 swapped0 swapped1 swapped2 swapped3 swapped4 swapped5; do
  # Pickles of protocols 0 and 1 begin without a marker.
  "$KVTOOL" convert -q "$name.pkl" --from torch --to safetensors -o "$name.safetensors"
  "$KVTOOL" diff expected.safetensors "$name.safetensors" > /dev/null && echo "$name: equal"
done
status=0; "$KVTOOL" inspect objects.pkl || status=$?; echo "exit $status"
