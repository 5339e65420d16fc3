# Invalid numbers and numbers out of range are refused by every flag before any file is opened.
refused() { status=0; "$KVTOOL" "$@" > /dev/null 2> said || status=$?; [ $status = 2 ] || { echo "exit $status: $*"; cat said; }; }
whole_only="nan inf -inf 8.7 1e3 0x10 99999999999999999999999999 one"
real_only="nan inf -inf 1e999 0x10 one"

h2o="replay-h2o none.bin --trace none.npz"
lossless="replay-lossless none.bin --mode store"
blend="replay-blend --full none.npz --chunks none.npz"
mlp="replay-mlp none.npz --weights none.bin"
while read -r command flag; do
  for value in $whole_only; do refused ${!command} "$flag=$value"; done
done << 'FLAGS'
h2o --block-tokens
h2o --sink
h2o --recent
h2o --update-interval
h2o --trigger-min
h2o --layer-start
h2o --layer-end
h2o --prompt-tokens
h2o --seed
h2o --quality-rows
h2o --kv-heads
h2o --head-dim
h2o --batch
h2o --threads
lossless --block-tokens
lossless --front-n
lossless --hot-recent-tokens
lossless --hot-sink-tokens
lossless --kept-sample-layers
lossless --store-bootstrap-tokens
lossless --async-threads
lossless --max-queue
lossless --strict-roundtrip-check
lossless --h2o-block-tokens
lossless --h2o-layer-end
lossless --h2o-enable
lossless --prompt-tokens
lossless --limit
blend --chunk-lens
blend --suffix-len
blend --check-layer
blend --rope-dims
blend --seed
mlp --image-len
mlp --factor
mlp --min-seq-len
mlp --seq-len
mlp --queries
FLAGS
while read -r command flag; do
  for value in $real_only; do refused ${!command} "$flag=$value"; done
done << 'FLAGS'
h2o --ema-alpha
h2o --target-ratio
lossless --h2o-ema-alpha
lossless --h2o-target-keep-ratio
lossless --h2o-target-lossy-ratio
blend --ratio
blend --ratios
blend --rope-base
blend --prefill-ms
mlp --rope-base
FLAGS
for value in 0 -1; do refused $h2o --block-tokens=$value; refused $lossless --h2o-block-tokens=$value; done
for value in 7 -0.1; do refused $h2o --ema-alpha=$value; refused $lossless --h2o-ema-alpha=$value; done
refused $h2o --sink=-1
refused $h2o --recent=-1
refused $h2o --layer-end=-2
refused $h2o --update-interval=0
refused $h2o --prompt-tokens=-5
refused $h2o --target-ratio=0.5
refused $lossless --prompt-tokens=-5
refused $lossless --limit=-1
refused $lossless --h2o-target-lossy-ratio=0.5
refused $blend --ratio=1.5
refused $blend --ratio=-0.1
for value in nan inf -1 0x10; do
  refused diff a.bin b.bin --atol="$value"
  refused weights diff a.bin b.bin --atol="$value"
  refused weights diff a.bin b.bin --rtol="$value"
  refused analyze none.bin --rope-theta="$value"
done
for value in nan 8.7 -1; do
  refused bench none.bin --rounds="$value"
  refused bench none.bin --chunk="$value"
  refused bench none.bin --most="$value"
  refused inspect none.bin --max-bytes="$value"
  refused doctor none.bin --max-bytes="$value"
  refused trace inspect none.npz --max-bytes="$value"
  refused convert none.bin --to npz -o none.npz --sequence="$value"
  refused analyze none.bin --rope-dim="$value"
  refused analyze none.bin --offline-codec adaptive --front-n="$value"
  refused analyze none.bin --offline-codec adaptive --online-chunk-seq="$value"
  refused trace inspect none.npz --batch="$value"
  refused gate --snapshot none.bin --prompt-tokens="$value"
  refused weights convert none.pth -o none.out --compression-factor="$value"
  refused weights verify none.bin --layers="$value"
done
# A leading zero does not make a number octal.
"$KVTOOL" inspect "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" --kv-heads 04 --json | jq -c '.results[0] | .layers[0].k.kv_heads'
