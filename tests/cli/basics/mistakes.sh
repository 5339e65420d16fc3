# For options and words that do not exist, similar ones are suggested, and nothing else.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
try() { "$KVTOOL" "$@" || echo "exit $?"; }
try frame encode --kv-heads 4 --dtype f16 "$state" -o none
try compress "$state" --ordr x
try compress "$state" --lveel max
try verify "$state" --order x
try compress "$state" --level 9 -o none
try inspect "$state" --from vllm-fs
try inspect "$state" --raw vllm:f16:L=1
try convert "$state" -o none
try replay lossless "$state" --mode store --k-predictors delta_sq
mkdir pages && cp "$TESTDATA/profiles/page.kvf" pages/a.kvf
try inspect pages --order name
"$KVTOOL" convert "$state" --kv-heads 4 -q -o state.npz && "$KVTOOL" inspect state.npz | grep -m1 format
test -e none && echo written
true
