# The suggested next steps: a faulty checkpoint is still recognised as one, and a file that no engine loads is not
# called ok.
pth="$TESTDATA/golden/infinilm/pth"
"$KVTOOL" doctor "$pth/layer_gap.pth" || echo "exit $?"
"$KVTOOL" weights inspect "$pth/layer_gap.pth" || echo "exit $?"
"$KVTOOL" convert "$pth/full_f5_fp16_flat.pth" --to safetensors -o none.safetensors || echo "exit $?"
"$KVTOOL" weights verify "$pth/full_f5_fp16_flat.pth" | sed -n 1p
"$KVTOOL" weights convert "$pth/special_f2_fp32_flat.pth" -o z.bin
"$KVTOOL" weights convert "$pth/full_f5_fp16_flat.pth" -o none.npz || echo "exit $?"
"$KVTOOL" weights diff "$pth/full_f5_fp16_flat.pth" "$pth/special_f2_fp32_flat.pth" | tail -1 || true
test -e none.safetensors -o -e none.npz && echo written
true
