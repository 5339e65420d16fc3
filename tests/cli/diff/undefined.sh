# Pairs with a NaN on one side have no distance: the mean excludes them, and if there are no other pairs, no distance
# is reported as 0.
$PYTHON - << 'PY'
import numpy
values = numpy.ones((8, 2, 16), "f4")
def save(name, nan_tokens, add):
    k = values + add
    k[:nan_tokens] = numpy.nan
    numpy.savez(name, k_0=k, v_0=values)
save("a.npz", 0, 0.0)
save("half.npz", 4, 0.5)
save("all.npz", 8, 0.0)
PY
for other in half all; do
  "$KVTOOL" diff a.npz $other.npz --layout thd --json -q > out.json || echo "exit $?"
  $VALIDATE < out.json
  jq -c '.results[0].layers[0].k | [.different_count, .not_finite_count, .max_abs, .mean_abs, .max_rel]' out.json
  "$KVTOOL" diff a.npz $other.npz --layout thd | sed -n 1,2p | tr -s ' ' || true
done
"$KVTOOL" diff a.npz all.npz --layout thd --html-out page.html -q || echo "exit $?"
grep -c '<td>-</td>' page.html || true
