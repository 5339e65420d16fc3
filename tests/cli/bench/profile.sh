# With a profile each level that uses it has two rows; profiles that compress refuses are refused here, too.
state=$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin
cp "$TESTDATA/profiles/s260k.kvp" model.kvp
"$KVTOOL" bench "$state" --deterministic --rounds 1 --chunk-bytes 16KiB --level fast,default,max --profile model.kvp | cut -d: -f2-
"$KVTOOL" bench "$state" --rounds 1 --level fast --profile model.kvp || echo "exit $?"
"$KVTOOL" bench "$state" --rounds 1 --profile model.kvp --profile model.kvp || echo "exit $?"
"$KVTOOL" bench "$state" --rounds 1 --profile missing.kvp || echo "exit $?"
"$KVTOOL" bench "$state" --rounds 1 --profile "$state" || echo "exit $?"
