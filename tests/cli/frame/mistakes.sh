# Tests typical confusions of kvtool's frames with MNN's, which `kvtool frame` is about.
in="$TESTDATA/golden/mnn/codec/f16_smooth_walk_8192.in.bin"
"$KVTOOL" frame encode --dtype f16 --predictors delta_sq --lo-predictors "raw, pair_delta" "$in" -o x.gear
"$KVTOOL" frame encode --dtype f16 "$in" -o x.kvf
"$KVTOOL" frame encode -f --dtype f16 "$TESTDATA/trace/s260k-L0-K.npy" -o x.gear
"$KVTOOL" frame inspect "$TESTDATA/profiles/page.kvf" || echo "exit $?"
"$KVTOOL" frame encode "$in" -o none.gear || echo "exit $?"
"$KVTOOL" frame encode --level max --dtype f16 "$in" -o none.gear || echo "exit $?"
test -e none.gear && echo written
true
