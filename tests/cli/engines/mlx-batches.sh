# Two versions of mlx-lm saved these batches and trimmed caches: every row equals what the class returns for it, from
# the file and from an archive.
cp -r "$TESTDATA/engines/mlx/batches" .
for version in 0.28.4 0.32.2; do
  echo "== $version"
  for name in batch batch-plain batch-ring-part batch-ring-turned chunked chunked-cut; do
    file=batches/$version/$name.safetensors
    "$KVTOOL" inspect $file --json > inspect.json || { echo "exit $?"; continue; }
    $VALIDATE < inspect.json > /dev/null
    rows=$(jq '.results[0].batch_rows' inspect.json)
    "$KVTOOL" compress -q $file -o $name.kvz -f
    "$KVTOOL" verify -q $name.kvz --against $file
    for row in $(seq 0 $((rows - 1))); do
      "$KVTOOL" convert -q $file --batch $row --to npz -o $name-$row.npz -f
      "$KVTOOL" convert -q $name.kvz --batch $row --to npz -o archived.npz -f
      "$KVTOOL" diff -q $name-$row.npz archived.npz
    done
    "$PYTHON" "$SHARED_SUITE/same_rows.py" $name $rows batches/$version/batches.npz
  done
done
"$KVTOOL" inspect batches/0.32.2/batch-ring-turned.safetensors
"$KVTOOL" inspect batches/0.32.2/batch-ring-turned.safetensors --batch 1
"$KVTOOL" inspect batches/0.32.2/chunked-cut.safetensors
"$KVTOOL" doctor batches/0.32.2/batch.safetensors | grep -e what -e --batch
# Commands that need one sequence ask which one.
for name in batch batch-plain; do
  "$KVTOOL" convert batches/0.32.2/$name.safetensors --to npz -o never.npz 2>&1 || echo "exit $?"
  "$KVTOOL" convert batches/0.32.2/$name.safetensors --batch 3 --to npz -o never.npz 2>&1 || echo "exit $?"
done
"$PYTHON" "$SHARED_SUITE/wrong_batches.py"
for row in 0 1; do "$KVTOOL" convert -q quantised --batch $row --to npz -o row$row.npz; done
"$PYTHON" -c "
import numpy
for row in range(2):
    print(*numpy.load(f'row{row}.npz')['k_0'][:, :, 0].ravel())"
"$KVTOOL" inspect quantised | grep -e batch -e layer
for file in few offsets padding ends index room true start long other none; do "$KVTOOL" inspect $file --batch 0 2>&1 || echo "exit $?"; done
