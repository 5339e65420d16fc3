# Arrays that cannot be a cache, or could be two caches, give one line each, which says what to do.
"$PYTHON" "$SHARED_SUITE/wrong_files.py"
for name in none two half batch object; do
  "$KVTOOL" inspect $name.npz || echo "$name: exit $?"
done
"$KVTOOL" inspect batch.npz --batch 1 | grep layer
"$KVTOOL" inspect batch.npz --batch 2 || echo "exit $?"
"$KVTOOL" inspect batch.npz --layout xyz || echo "exit $?"
"$KVTOOL" inspect damaged.npz | grep layer
"$KVTOOL" inspect damaged.npz --stats > stats.txt || echo "exit $?"
"$KVTOOL" convert damaged.npz --to npy -o out || echo "exit $?, nothing written: $(ls out 2>&1 | wc -l)"
# A format of one file refuses a folder, however many files it holds.
mkdir empty two && cp half.npz two/a.npz && cp half.npz two/b.npz
for format in npz lmcache-block torch kvz; do
  for folder in empty two; do "$KVTOOL" inspect $folder --from $format || echo "$format: exit $?"; done
done
