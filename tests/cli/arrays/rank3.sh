# The shape alone does not show whether heads or tokens come first. The file, the number of heads or --layout decides;
# otherwise the values of real layers do, in either order. Values without structure are ambiguous.
"$PYTHON" "$SHARED_SUITE/rank3_caches.py" "$TESTDATA/trace"
for name in tokens-first heads-first batch; do
  "$KVTOOL" inspect $name.npz | grep -e layer -e margin
done
"$KVTOOL" inspect tokens-first.npz --layout htd | grep layer
for flags in "--layout thd" "--layout htd" "--kv-heads 3" "--kv-heads 6"; do
  "$KVTOOL" inspect plain.npz $flags | grep layer
done
"$KVTOOL" inspect told.npz | grep -e layer -e cells
for command in inspect "convert --to npz -o out.npz"; do
  for name in plain zeros; do
    "$KVTOOL" $command $name.npz || echo "exit $?"
  done
done
# Bytes can be archived without knowing the order; extracting values from the archive requires it.
"$KVTOOL" compress plain.npz -q || echo "exit $?"
"$KVTOOL" decompress plain.npz.kvz -o again.npz -qq && cmp again.npz plain.npz && echo same
"$KVTOOL" decompress plain.npz.kvz --to npy -o none || echo "exit $?"
"$KVTOOL" decompress plain.npz.kvz --to npy -o out --layout thd -q && "$KVTOOL" inspect out | grep layer
