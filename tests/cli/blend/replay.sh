# Chunk files and CacheBlend's file of joined, unrotated keys give the same result as the reference.
set=$TESTDATA/golden/blend
$PYTHON "$SHARED_SUITE/make.py" "$set/replay"
common="--full $set/replay/full.safetensors --layout thd --rope-base 10000 --trace q.npz"
"$KVTOOL" replay-blend $common --chunks "$set"/replay/chunk?.safetensors --json -q > chunks.json
"$KVTOOL" replay-blend $common --old "$set/replay/old_kvs_unrotated.safetensors" --old-layout tc \
  --chunk-lens 4,18,18,14,6 --old-rope unrotated --json -q > joined.json
$VALIDATE < chunks.json
$VALIDATE < joined.json
jq -c '.results[0] | .selection | [.variant, .topk, .count, .indices]' chunks.json joined.json | uniq
jq -e --slurpfile golden "$set/manifest.json" '.results[0] | .selection.indices == $golden[0].replay[0].expect.hkvd' chunks.json
jq -c '.results[0] | [.layers[].overlap], [.selection.per_chunk[].selected], .tokens.suffix, .rows, .mask' chunks.json
jq -c '.results[0] | [.faults[].name]' chunks.json joined.json
jq -c '.results[0] | .curve[] | select(.recomputed_fraction == 1) | .mean | [.dev_v_remaining, .dev_k_remaining, .attn_dev_l2]' chunks.json
"$KVTOOL" replay-blend $common --chunks "$set"/replay/chunk?.safetensors --engine lmcache --json -q > lmcache.json
$VALIDATE < lmcache.json
jq -e --slurpfile golden "$set/manifest.json" '.results[0] | .selection.indices == $golden[0].replay[0].expect.hkvd_lmcache_k' lmcache.json
# One thread, five threads and no SIMD give the same document.
for flags in "-T 1" "-T 5" "-T 2 --simd SCALAR"; do
  "$KVTOOL" replay-blend $common --chunks "$set"/replay/chunk?.safetensors --json -q $flags | cmp - chunks.json
done
