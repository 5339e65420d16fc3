codec="$TESTDATA/golden/mnn/codec"
for name in f16_smooth_walk_8192 f16_ramp_2048 f32_gauss_4096; do
  dtype=${name%%_*}
  "$KVTOOL" frame encode -q --dtype $dtype --no-zstd "$codec/$name.in.bin" -o "$name.gear"
  cmp "$name.gear" "$codec/$name.rle.frame.bin"
  "$KVTOOL" frame decode -q --dtype $dtype "$codec/$name.zstd.frame.bin" -o "$name.bin"
  cmp "$name.bin" "$codec/$name.in.bin"
done
# The bytes are the same through pipes on either side and on any SIMD target.
for simd in $("$KVTOOL" targets --json | jq -r '.results[0].simd[] | select(.supported).name'); do
  "$KVTOOL" frame encode -q --simd $simd --dtype bf16 - -c < "$codec/f16_smooth_walk_8192.in.bin" > piped.gear
  "$KVTOOL" frame encode -q -f --dtype f16 "$codec/f16_smooth_walk_8192.in.bin" -o plain.gear
  cmp piped.gear plain.gear
  "$KVTOOL" frame decode -q --dtype half - -o - < piped.gear | cmp - "$codec/f16_smooth_walk_8192.in.bin"
done
