# These types code all layers together by a transform learnt from other caches; one learnt from the cache itself is
# refused.
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" run
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
flags="--kv-heads 4 --head-dim 8 --rope-base 10000 --rope-style gptj --keep-first 2 --keep-last 8"
"$KVTOOL" train "$state" --transform kvtc $flags --name stories260K -o model.kvx
"$KVTOOL" train "$state" --transform kvtc $flags --basis bf16 --grouping layer --ratio 4 -o layers.kvx --json -q > train.json
$VALIDATE < train.json
jq -c '.results[0].transform | [.layers, .basis_type, .rows, .k.bases, .k.components, [.k.plans[].form]]' train.json
"$KVTOOL" replay-quant run --transform model.kvx --k q4_0,kvtc:4,kvtc_rans:4,kvtc_ascend:4 --v q4_0,kvtc:4 --rows 0 --keep-first 2 --keep-last 8
"$KVTOOL" replay-quant run --transform model.kvx --k "kvtc_dynamo:int8*16+int4*32" --v "kvtc_dynamo:fp8*64" --json -q > quant.json
$VALIDATE < quant.json
jq -c '.results[0].transform | .model, .self, .first_full, .last_full, [.types[] | [.type, .side, .middle_tokens, .full_tokens]]' quant.json
# Refusals.
"$KVTOOL" train run/snapshot.bin --transform kvtc $flags -o own.kvx -q
"$KVTOOL" replay-quant run --transform own.kvx --k kvtc:4 || echo "exit $?"
"$KVTOOL" replay-quant run --transform own.kvx --k kvtc:4 --allow-self --keep-first 2 --keep-last 8 --json | jq -c ".results[0].transform.self"
"$KVTOOL" replay-quant run --k kvtc:4 || echo "exit $?"
"$KVTOOL" replay-quant run --transform model.kvx --k kvtc:5 || echo "exit $?"
"$KVTOOL" replay-quant run --transform model.kvx --k kvtc_dynamo:int4*33 --keep-first 2 || echo "exit $?"
"$KVTOOL" replay-quant run --transform model.kvx --k kvtc_dynamo:int3*32 --keep-first 2 || echo "exit $?"
"$KVTOOL" replay-quant run --transform model.kvx --k kvtc:4 --rope-base 500000 || echo "exit $?"
"$KVTOOL" replay-quant run --transform model.kvx --k kvtc:4 --advise --bytes-per-token 100 || echo "exit $?"
head -c 2000 model.kvx > cut.kvx
"$KVTOOL" replay-quant run --transform cut.kvx --k kvtc:4 || echo "exit $?"
"$KVTOOL" train "$state" --transform kvtc $flags --rank 1024 -o none.kvx || echo "exit $?"
"$KVTOOL" train "$state" --transform kvtc --kv-heads 4 --head-dim 8 -o none.kvx || echo "exit $?"
test -e none.kvx && echo written
true
