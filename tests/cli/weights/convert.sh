G="$TESTDATA/golden/infinilm"
ln -s "$G" golden
"$KVTOOL" weights convert golden/pth/special_f2_fp32_flat.pth -o s.bin
"$KVTOOL" weights convert golden/pth/bias_mismatch.pth -o b.bin
"$KVTOOL" weights convert golden/pth/text_tiny.pth -o t.bin
"$KVTOOL" weights convert golden/pth/module_prefix.pth -o m.bin --dtype fp32 --json | $VALIDATE
cmp m.bin golden/bin/tiny_flat_as_fp32.bin
