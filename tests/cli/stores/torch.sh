# A cache converts to Hugging Face's tuple and to kvtool's dict, and both give the same values.
cp "$TESTDATA/golden/blend/pt/dynamic_cache_4x.zip.pt" cache.pt
"$KVTOOL" convert cache.pt --to torch -o tuple.pt
"$KVTOOL" convert cache.pt --to torch-dict -o dict.pt
for file in cache tuple dict; do
  "$KVTOOL" inspect $file.pt | grep -E "layers|keys|axes"
  "$KVTOOL" convert -q $file.pt --to npz -o $file.npz
done
"$PYTHON" - <<'PYTHON_END'
import zipfile
def arrays(name):
    with zipfile.ZipFile(name) as file:
        return {n: file.read(n) for n in file.namelist() if n.startswith(("k_", "v_"))}
print("equal:", arrays("cache.npz") == arrays("tuple.npz") == arrays("dict.npz"), len(arrays("cache.npz")), "arrays")
PYTHON_END
"$KVTOOL" convert cache.pt --layers 1 --to torch -o gap.pt || echo "exit $?"
cp "$TESTDATA/golden/blend/pt/attentions.zip.pt" attentions.pt
"$KVTOOL" inspect attentions.pt || echo "exit $?"
cp "$TESTDATA/golden/blend/pt/old_kvs_list_f16.legacy.pt" old_kvs.pt
"$KVTOOL" inspect old_kvs.pt --kv-heads 2
