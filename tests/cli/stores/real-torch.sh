# Real torch loads what --to torch writes, with equal values, and kvtool reads what torch pickles; skipped if torch is
# not installed.
"$PYTHON" -c 'import torch' 2> /dev/null || { echo "$PYTHON has no torch"; exit 77; }
source="$TESTDATA/golden/blend/pt/dynamic_cache_4x.zip.pt"
"$KVTOOL" convert -q "$source" --to torch -o tuple.pt
"$KVTOOL" convert -q "$source" --to safetensors -o cache.safetensors
"$PYTHON" "$SHARED_SUITE/load_in_torch.py"
for protocol in 2 4; do
  "$KVTOOL" convert -q pickled$protocol.pkl --to safetensors -o pickled$protocol.safetensors
  "$KVTOOL" diff -q pickled$protocol.safetensors cache.safetensors
done
