# .pth -> .bin -> .pth -> .bin and .bin -> safetensors -> .bin give the same bytes.
G="$TESTDATA/golden/infinilm"
for dtype in fp16 bf16 fp32; do
  "$KVTOOL" weights convert -q "$G/pth/full_f5_fp32_trainer.pth" -o a.bin --dtype $dtype -f
  cmp a.bin "$G/bin/full_f5_from_fp32_as_$dtype.bin"
  "$KVTOOL" weights convert -q a.bin -o a.pth -f
  "$KVTOOL" weights convert -q a.pth -o b.bin --dtype $dtype -f && cmp a.bin b.bin
  "$KVTOOL" weights convert -q a.bin -o a.safetensors --min-seq-len 7 --num-heads 3 -f
  "$KVTOOL" weights convert -q a.safetensors -o c.bin --dtype $dtype --min-seq-len 2 -f
  "$KVTOOL" weights diff a.bin c.bin
done
# The first 6 blocks of a layer are those of a text-only file; metadata survives.
"$KVTOOL" weights convert -q a.bin -o text.bin --text-only
"$KVTOOL" weights inspect text.bin | sed -n 2p
head -c 40 a.bin > meta.bin; printf '\3\0\0\0abc' >> meta.bin; tail -c +45 a.bin >> meta.bin
"$KVTOOL" weights convert -q meta.bin -o meta.safetensors
"$KVTOOL" weights convert -q meta.safetensors -o meta2.bin --dtype fp32 && cmp meta.bin meta2.bin
"$KVTOOL" weights convert -q meta.bin -o meta3.bin && cmp meta.bin meta3.bin
