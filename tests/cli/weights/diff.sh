ln -s "$TESTDATA/golden/infinilm" golden
try() { "$KVTOOL" weights diff "$@" || echo "status $?"; }
try golden/pth/tiny_flat.pth golden/bin/tiny_flat_as_fp32.bin
try golden/pth/tiny_flat.pth golden/bin/text_tiny_as_fp16.bin --atol 1e-3 | tail -4
try golden/pth/full_f5_fp32_flat.pth golden/bin/full_f5_from_fp32_as_fp16.bin --atol 1e-3 | tail -1
"$KVTOOL" weights diff --json golden/pth/full_f5_fp32_flat.pth golden/bin/full_f5_from_fp32_as_bf16.bin > report.json || echo "status $?"
$VALIDATE < report.json
jq -c '.results[0] | [.verdict, .notes, .blocks[0].weight.beyond_tolerance_count]' report.json
