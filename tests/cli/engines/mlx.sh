# Three versions of mlx-lm saved these prompt caches: each class is recognised, and read in the order of the text.
for version in 0.20.4 0.28.4 0.32.2; do
  echo "== $version"
  for file in "$TESTDATA/engines/mlx/$version"/*.safetensors; do
    name=$(basename "$file" .safetensors)
    cp "$file" .
    if [ $name = hybrid ]; then
      "$KVTOOL" inspect hybrid.safetensors || echo "exit $?"
      "$KVTOOL" convert -q hybrid.safetensors --k-pattern '{i}.0' --v-pattern '{i}.1' --to npz -o c.npz -f 2> note
      grep -o "state-space layers and are left out" note || true
    else
      "$KVTOOL" convert -q $name.safetensors --to npz -o c.npz -f
    fi
    "$PYTHON" "$SHARED_SUITE/same_mlx.py" $name c.npz "$TESTDATA/engines/mlx/$version/expected.npz"
    case $name in ring*) "$PYTHON" -c "
import numpy as np
c = np.load('c.npz')
for key in sorted(c.files):
    if key.startswith('positions'): print(' ', key, *c[key])" ;; esac
    "$KVTOOL" compress -q $name.safetensors --from $([ $name = hybrid ] && echo opaque || echo safetensors) -o a.kvz -f
    "$KVTOOL" decompress -q a.kvz -o back -f && cmp $name.safetensors back
  done
done
"$KVTOOL" inspect ring-turned.safetensors
"$KVTOOL" inspect quantised-8.safetensors
# Invalid contents are refused, with their layer and class.
"$PYTHON" "$SHARED_SUITE/wrong_mlx.py"
for file in offset negative place kept unseen text few empty list later first bits group width; do "$KVTOOL" inspect $file || echo "exit $?"; done
