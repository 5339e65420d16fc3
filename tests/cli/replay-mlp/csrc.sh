# InfiniLM's csrc would lose tokens in these cases, or give no message.
G="$TESTDATA/golden/infinilm"; W="$G/bin/full_f5_from_fp32_as_fp16.bin"
run() { local status=0; "$KVTOOL" replay-mlp "$G/dump_kv" --weights "$@" 2>&1 || status=$?; echo "exit $status"; }
echo "== a factor that does not fit"
run "$W" --factor 4 --dry-run
run "$W" --factor 4 --dry-run --compat csrc
echo "== the same behind a short image prefix"
run "$W" --factor 4 --image-len 5 --dry-run --compat csrc
echo "== prefixes in another order"
run "$G/bin/full_f5_swapped_order_as_fp16.bin" --prefix-order compress_ik,compress_iv,compress_tk,compress_tv --dry-run --compat csrc
