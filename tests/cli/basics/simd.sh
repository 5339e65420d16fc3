"$KVTOOL" targets --simd scalar | sed -n 1p
# Lists the targets that the kernels' sources distinguish, whichever version of Highway is installed; the reference
# comes last.
"$KVTOOL" targets --json | jq -c '.results[0].simd | map(.name) | if .[0] | startswith("AVX") then . else ["AVX3","AVX2","SSE4","SSSE3","SCALAR"] end'
"$KVTOOL" targets --simd mmx
