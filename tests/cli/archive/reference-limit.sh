# --max-bytes also limits what is inflated of a cache that an archive refers to.
"$PYTHON" - <<'PY'
import numpy
k = numpy.random.default_rng(1).normal(size=(800, 1, 32)).astype("f2")
numpy.savez_compressed("base.npz", k_0=k, v_0=k + 1)
numpy.savez("cache.npz", k_0=k[:400], v_0=k[:400] + 1)
PY
"$KVTOOL" compress cache.npz --base base.npz -o c.kvz -qq
for limit in 60KiB 110KiB; do
  "$KVTOOL" verify c.kvz --max-bytes $limit 2>&1 || echo "exit $?"
  "$KVTOOL" decompress c.kvz -o back.npz -f --max-bytes $limit -q 2>&1 || echo "exit $?"
done
cmp cache.npz back.npz
