# The golden dump is written again, byte for byte, from its input, with its report.
G="$TESTDATA/golden/infinilm"
"$KVTOOL" replay-mlp "$G/dump_kv" --weights "$G/bin/full_f5_from_fp32_as_fp16.bin" --image-len 11 --no-quality -q -o again --to infinilm-dump > plan.txt
for f in meta.json input_kv.bin output_kv.bin; do cmp "$G/dump_kv/$f" "again/$f"; done
"$KVTOOL" replay-mlp "$G/dump_kv" --weights "$G/pth/full_f5_fp32_trainer.pth" --image-len 11 -q --json | $VALIDATE
"$KVTOOL" replay-mlp "$G/dump_kv" --weights "$G/bin/full_f5_from_fp32_as_fp16.bin" --image-len 11 --rope-base 10000 -T1 --deterministic --json > a.json
"$KVTOOL" replay-mlp "$G/dump_kv" --weights "$G/bin/full_f5_from_fp32_as_fp16.bin" --image-len 11 --rope-base 10000 -T3 --deterministic --json > b.json
cmp a.json b.json
$VALIDATE < a.json
