page="$TESTDATA/golden/blend/sglang_hicache/0123abcd_org-model_0_1.bin"
"$KVTOOL" inspect "$page" --raw 'bf16:2LPHD:2,2,?,2,8' --json | $VALIDATE
cp "$page" page.bin
"$KVTOOL" inspect page.bin --from raw --raw 'bf16:2LPHD:2,2,?,2,8'
"$KVTOOL" inspect page.bin --raw 'bf16:2LPC:2,2,?,16' --kv-heads 2
