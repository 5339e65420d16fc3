# Presets name an engine's order of axes; messages name missing values by their flags.
head -c 4096 /dev/zero > data.bin
for raw in hicache hicache:bf16 hicache:q8_0:L=2 hicache:bf16:L=2,H=2,D=8,X=1 hicache:bf16:L=2,L=2 hicache:bf16:L= \
    hicache:bf16:L=2,H=3,D=8 hicache-page-head:bf16:L=2,C=16 vllm-fs:bf16:L=2,H=2,D=8; do
  "$KVTOOL" inspect data.bin --raw "$raw" || echo "exit $?"
done
for raw in hicache:bf16:L=2,H=2,D=8 hicache-page-first:bf16:L=2,H=2,D=8 hicache-page-head:bf16:L=2,H=2,D=8 \
    hicache-mla:bf16:L=2,D=64 vllm-fs:bf16:L=2,H=2,D=8,P=16 vllm-fs-hnd:bf16:L=2,H=2,D=8,P=16 vllm-fs-mla:bf16:L=2,D=64,P=8 \
    lmcache-disk-layer:f16:H=2,D=8 lmcache-disk-layer-2td:f16:H=2,D=8 lmcache-disk-mla:f16:L=2,D=64 lmcache-fast:bf16:L=2,H=2,D=8; do
  "$KVTOOL" inspect data.bin --raw "$raw" | grep -E "format|layer|layout"
done
