ln -s "$TESTDATA/golden/infinilm" golden
try() { "$KVTOOL" weights verify "$@" || echo "status $?"; }
try golden/bin/full_f5_from_fp32_as_fp16.bin --layers 2 --head-dim 16 --factor 5
try golden/bin_bad/metadata_16_absent.bin
try golden/bin_bad/has_bias_2.bin --compat csrc
try golden/bin_bad/wcount_4097.bin --compat legacy
try golden/bin/text_tiny_as_fp16.bin --layers 2
try golden/pth/tiny_flat.pth
