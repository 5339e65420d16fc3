# Three updates become one; the packed dump gives the same rows.
run="$TESTDATA/golden/mnn/dumps/case_fp32_h4_l1_fa64"
"$KVTOOL" convert -q "$run" --to mnn-dump -o joined
"$KVTOOL" convert -q "$run" --layout packed --to mnn-dump -o unpacked
for layer in 0 1; do
  for part in k v; do
    cat "$run/layer_$layer/${part}_t0_10.bin" "$run/layer_$layer/${part}_t10_11.bin" \
        "$run/layer_$layer/${part}_t11_12.bin" > rows
    cmp rows "joined/layer_$layer/${part}_t0_12.bin"
    cmp rows "unpacked/layer_$layer/${part}_t0_12.bin"
  done
done
find joined -type f | sort
cat joined/layer_1/meta_t0_12.json
