"$KVTOOL" targets --simd scalar | head -1
"$KVTOOL" targets --simd mmx
