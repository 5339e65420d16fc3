# The same values result from every format of the cache.
G="$TESTDATA/golden/infinilm"; W="$G/bin/full_f5_from_fp32_as_fp16.bin"
for to in safetensors npz; do
  "$KVTOOL" convert "$G/dump_kv" --to $to -o cache.$to -q
  "$KVTOOL" replay-mlp cache.$to --weights "$W" --image-len 11 --no-quality -q -o again-$to --to infinilm-dump > /dev/null
  cmp "$G/dump_kv/output_kv.bin" again-$to/output_kv.bin
  "$KVTOOL" replay-mlp cache.$to --weights "$W" --image-len 11 --no-quality -q -o small.$to --to $to > /dev/null
  "$KVTOOL" inspect small.$to --json | "$PYTHON" -c 'import json,sys; l = json.load(sys.stdin)["results"][0]["layers"]; print(len(l), l[0]["k"]["tokens"])'
done
