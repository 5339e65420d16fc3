G="$TESTDATA/golden/infinilm"; W="$G/bin/full_f5_from_fp32_as_fp16.bin"
run() { local status=0; "$KVTOOL" replay-mlp "$@" > /dev/null || status=$?; echo "exit $status"; }
run "$G/dump_kv"
run "$G/dump_kv" --weights missing.bin
run "$G/dump_kv" --weights "$G/bin_bad/bad_magic.bin"
run "$G/dump_kv" --weights "$G/bin/text_tiny_as_fp16.bin"
run "$G/dump_kv" --weights "$W" -o out
run "$G/dump_kv" --weights "$W" -o out --to nothing
run "$G/dump_kv" --weights "$W" -o out --to infinilm-dump --dry-run
run "$G/dump_kv" --weights "$W" --dtype q8_0
run "$G/dump_kv" --weights "$W" --positions new-len
run "$G/dump_kv" --weights "$W" --image-tokens 100000 --dry-run
run "$G/dump_kv" --weights "$W" --image-tokens 11 --first-tokens 10 --dry-run
ls
