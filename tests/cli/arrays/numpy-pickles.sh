# What numpy leaves in pickles of any protocol and order of bytes or axes is what npz gives.
"$PYTHON" "$SHARED_SUITE/pickled_caches.py"
"$KVTOOL" convert -q cache.npz --to safetensors -o expected.safetensors
for name in c0 c1 c2 c3 c4 c5 swapped0 swapped1 swapped2 swapped3 swapped4 swapped5; do
  # Protocols 0 and 1 begin with nothing that tells them from other files.
  "$KVTOOL" convert -q "$name.pkl" --from torch --to safetensors -o "$name.safetensors"
  "$KVTOOL" diff expected.safetensors "$name.safetensors" > /dev/null && echo "$name: equal"
done
status=0; "$KVTOOL" inspect objects.pkl || status=$?; echo "exit $status"
