# An archive stores deflated members as opaque bytes; to extract tensors, the source is restored first.
"$PYTHON" - <<'PY'
import numpy as np
k = (np.arange(2 * 4 * 5 * 8) % 97 / 8).astype(np.float16).reshape(2, 4, 5, 8)
np.savez_compressed("cache.npz", k_0=k[0], v_0=k[1], k_1=k[1], v_1=k[0])
PY
"$KVTOOL" compress cache.npz -qq
"$KVTOOL" verify cache.npz.kvz --against cache.npz | sed 's/,.*//'
"$KVTOOL" diff cache.npz.kvz cache.npz --layout htd
"$KVTOOL" decompress cache.npz.kvz --layout htd --layers 1 --tokens 1:4 --kv k --to safetensors -o part.safetensors -q
"$KVTOOL" inspect part.safetensors | grep layer
"$KVTOOL" decompress cache.npz.kvz --layout htd --rope-pairs keep --to llama-state -o state.bin -q
"$KVTOOL" diff state.bin cache.npz --layout-b htd
