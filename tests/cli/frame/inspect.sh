codec="$TESTDATA/golden/mnn/codec"
"$KVTOOL" frame inspect "$codec/f16_ramp_2048.rle.frame.bin"
"$KVTOOL" frame inspect "$codec/f32_zero_777.zstd.frame.bin"
"$KVTOOL" frame inspect - --json < "$codec/f32_zero_777.zstd.frame.bin" | $VALIDATE
