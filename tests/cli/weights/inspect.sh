cd "$TESTDATA/golden/infinilm"
"$KVTOOL" weights inspect pth/full_f5_fp32_trainer.pth
"$KVTOOL" weights inspect bin/text_tiny_as_fp16.bin
"$KVTOOL" weights inspect pth/legacy_proto4.pth --stats | sed -n 8,11p
"$KVTOOL" weights inspect bin/full_f5_from_fp32_as_fp16.bin --blocks | tail -1
