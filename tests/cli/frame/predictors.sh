in="$TESTDATA/golden/mnn/codec/f16_smooth_walk_8192.in.bin"
planes() { "$KVTOOL" frame encode -q -f --dtype f16 "$@" "$in" -o x.gear; "$KVTOOL" frame inspect x.gear --json | jq -r '.results[0] | [.planes[].predictor] | join(" ")'; }
planes
planes --predictors raw
planes --predictors ""
planes --predictors delta_seq --lo-predictors raw
planes --lo-predictors "xor_seq , pair_delta" --hi-predictors RAW
