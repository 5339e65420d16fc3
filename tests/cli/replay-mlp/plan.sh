# The plan alone has segments, groups and tails; nothing is computed or written.
G="$TESTDATA/golden/infinilm"
"$KVTOOL" replay-mlp "$G/dump_kv" --weights "$G/bin/full_f5_from_fp32_as_fp16.bin" --image-len 11 --dry-run
"$KVTOOL" replay-mlp "$G/dump_kv" --weights "$G/bin/text_f5_as_fp32.bin" --image-len 6 --dry-run 2>&1
"$KVTOOL" replay-mlp "$G/dump_kv" --weights "$G/bin/full_f5_from_fp32_as_fp16.bin" --seq-len 9 --dry-run --json | $VALIDATE
ls
