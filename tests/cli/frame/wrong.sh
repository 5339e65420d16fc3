codec="$TESTDATA/golden/mnn/codec"
try() { status=0; "$KVTOOL" frame "$@" || status=$?; echo "$status"; }
cp "$codec/f16_ramp_2048.rle.frame.bin" x.gear
cp "$codec/f32_zero_777.zstd.frame.bin" y.gear
cp "$codec/f16_two.in.bin" two.bin
try
try encod x.gear
try encode --dtype f32 --lo-predictors raw two.bin -o out
try encode --dtype q8_0 two.bin -o out
try encode --dtype f16 two.bin
try encode --dtype f16 two.bin -o out -c
try decode x.gear -o out
try decode --dtype f16 x.gear -o two.bin
try decode --dtype f16 absent -o out
head -c 3 two.bin | try encode --dtype f16 - -o out
head -c 0 two.bin | try encode --dtype f16 - -o out
try decode --dtype f32 x.gear -o out
try decode --dtype f16 y.gear -o out
try inspect two.bin
head -c 20 x.gear > cut
try inspect cut
printf '\xff\xff\xff\xff\0\1\xff\xff\xff\xff\4\0\0\0\x28\xb5\x2f\xfd\0\1\xff\xff\xff\xff\4\0\0\0\x28\xb5\x2f\xfd' > huge
(ulimit -v 262144; try decode --dtype f16 huge -o out)
test ! -e out
