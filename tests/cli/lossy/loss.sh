# Tests weights from a recorded run, and the largest ratio within an expected loss.
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" run
learn="$TESTDATA/llamacpp/states/s260k-b5640-f16-vtrans.seq0.bin"
flags="--kv-heads 4 --head-dim 8 --rope-base 10000 --rope-style gptj"
train() {
  "$KVTOOL" train "$learn" --transform kvtc $flags --keep-first 2 --keep-last 8 --name stories260K --ratio 4,8,16 "$@"
}
cp "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" cache.bin
train --weights-from run -o model.kvx --json -q > train.json
$VALIDATE < train.json
jq -c '.results[0].transform | .weighted, (.learnt_from | length)' train.json
"$KVTOOL" inspect model.kvx | grep -c "features weighted by their share in the loss"

echo "-- the expected loss grows with the ratio, and --loss chooses by it"
for ratio in 4 8 16; do
  "$KVTOOL" compress cache.bin --transform model.kvx --ratio $ratio $flags -q -o $ratio.kvz --json > $ratio.json
  $VALIDATE < $ratio.json
done
jq -s -c 'map(.results[0].lossy.expected_kl) | .[0] > 0, .[0] < .[1], .[1] < .[2]' 4.json 8.json 16.json
limit=$(jq '.results[0].lossy.expected_kl' 8.json)
"$KVTOOL" compress cache.bin --transform model.kvx --loss ${limit}nats $flags -q -o chosen.kvz --json-out chosen.json
jq -c '.results[0].lossy.ratio' chosen.json
cmp chosen.kvz 8.kvz && echo the same archive
"$KVTOOL" inspect chosen.kvz | grep -c "expected loss .* nats a token"
"$KVTOOL" verify chosen.kvz --against cache.bin -q && echo within
"$KVTOOL" compress cache.bin --transform model.kvx --ratio 4 $flags -f -o 4.kvz 2>&1 | grep -c "nats a token"
if "$PYTHON" -c 'import numpy, zstandard' 2>&-; then
  "$KVTOOL" decompress 4.kvz -q -o back.bin
  "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" 4.kvz out.bin --transform model.kvx 2> decoder || cat decoder
  cmp out.bin back.bin && echo the independent decoder restores the same
fi

echo "-- the replays know weights too"
"$KVTOOL" replay-quant run --transform model.kvx --k kvtc_rans:4 --v kvtc_rans:4 --keep-first 2 --keep-last 8 --allow-self --json -q > quant.json
jq -c '.results[0].transform | .weighted, (.types | length)' quant.json

echo "-- refusals"
refuse() {
  "$KVTOOL" compress "$@" -o none.kvz || echo "exit $?"
}
refuse cache.bin --transform model.kvx --loss 1e-12nats $flags > refused 2>&1
sed -e 's/cost [^ ]* nats/cost N nats/' refused
refuse cache.bin --transform model.kvx --loss 0.1 --ratio 4 $flags
refuse cache.bin --transform model.kvx --loss much $flags
refuse cache.bin --loss 0.1
refuse cache.bin --transform "$TESTDATA/lossy/s260k.kvx" --loss 0.1 $flags --allow-self
refuse run/snapshot.bin --transform model.kvx --ratio 4 $flags
train --weights-from "$learn" -o none.kvx || echo "exit $?"
train --weights-from missing -o none.kvx || echo "exit $?"
rm run/trace/g.2.safetensors
train --weights-from run -o none.kvx || echo "exit $?"
test -e none.kvz && echo written
test -e none.kvx && echo written
true
