# A failed conversion leaves nothing behind, and nothing is overwritten.
ln -s "$TESTDATA/golden/infinilm" golden
try() { "$KVTOOL" weights convert "$@" -o out.bin || echo "status $?"; }
try golden/pth/layer_gap.pth
try golden/pth/weight_3d.pth
try golden/pth/tensor_only.pth
try golden/pth/int_keys.pth
try golden/pth/missing_storage.pth
try golden/pth/legacy_truncated.pth
try golden/pth/unsafe_global.pth
try golden/pth/full_f5_fp32_flat.pth --slot-order 0,2,4
try golden/pth/full_f5_fp32_flat.pth --slot-order 0,3
try golden/pth/full_f5_fp32_flat.pth --dtype int8
try golden/pth/full_f5_fp32_flat.pth --to onnx
try golden/bin_bad/reserved_nonzero.bin
try absent.pth
ls
touch out.bin
try golden/pth/text_tiny.pth
