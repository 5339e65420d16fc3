# Every document that --json prints, for success and failure, fits its schema.
cp "$TESTDATA/trace/s260k.seq0.bin" slot.bin; s=slot.bin; trace="$TESTDATA/trace/s260k"; blend="$TESTDATA/golden/blend/replay"
bin="$TESTDATA/golden/infinilm/bin/full_f5_from_fp32_as_fp16.bin"
"$KVTOOL" compress $s -o kept.kvz -q
"$KVTOOL" frame encode -q --dtype f16 "$TESTDATA/golden/mnn/codec/f16_smooth_walk_8192.in.bin" -o k.gear
"$KVTOOL" replay-h2o $s --trace "$trace" --prompt-tokens 64 --budget 0.5 --no-quality --plan-out plan.json -q > /dev/null
h2o="--trace $trace --prompt-tokens 64"
good() { # words
  status=0; "$KVTOOL" "$@" --json > out.json 2> err.txt || status=$?
  jq -c . out.json >> all.jsonl
  [ "$(jq -r .schema out.json)" = "kvtool.$document/2" ] || cat out.json err.txt
  jq -e ".exit_code == $status and (.results | length > 0) and ([.results[] | has(\"inputs\")] | all)" out.json > /dev/null || cat out.json
}
fails() { # runs a wrong command line and prints what the document says is wrong
  status=0; "$KVTOOL" "$@" --json > out.json 2> err.txt || status=$?
  jq -c . out.json >> all.jsonl
  jq -c --arg status $status '[.schema, .exit_code, $status, (.results | length), .errors[0].finding]' out.json
}
mkdir corpus; cp $s corpus; "$KVTOOL" corpus make corpus -o corpus.jsonl -q
document=inspect good inspect $s kept.kvz --stats
document=inspect good inspect $s missing.bin
document=analyze good analyze $s --level compat --distribution
document=compress good compress $s -o made.kvz
document=decompress good decompress kept.kvz -o made.bin
document=decompress good decompress kept.kvz --kv-heads 4 --to npz -o made.npz
document=verify good verify kept.kvz --against $s
document=convert good convert $s --kv-heads 4 --to npz -o c.npz
document=diff good diff $s kept.kvz
document=frame good frame inspect k.gear
document=bench good bench $s --rounds 1 --levels default --chunk 64KiB
document=h2o good replay-h2o $s $h2o --target-ratio 2 --detail
document=advise good advise $s $h2o --policies window --budgets 0.5 --min-ratio 1.5 --rows 8
document=replay-lossless good replay-lossless $s --trace "$trace" --mode store --prompt-tokens 96
document=blend good replay-blend --full "$blend/full.safetensors" --chunks "$blend"/chunk?.safetensors --layout thd --rope-base 1e4
document=plan-check good plan check plan.json --snapshot $s --kv-heads 4
document=trace good trace inspect "$trace"
document=quant good replay-quant $s --trace "$trace" --prompt-tokens 64 --k q8_0 --v q8_0 --rows 8
document=replay-mlp good replay-mlp "$TESTDATA/golden/infinilm/dump_kv" --weights "$bin" --dry-run
document=gate good gate --snapshot $s $h2o --case runtime_probe -q
document=weights-inspect good weights inspect "$bin" --stats
document=weights-verify good weights verify "$bin"
document=weights-diff good weights diff "$bin" "$bin"
document=weights-convert good weights convert "$TESTDATA/golden/infinilm/pth/full_f5_fp32_flat.pth" -o w.bin
document=formats good formats
document=targets good targets
document=corpus-check good corpus check corpus.jsonl
"$KVTOOL" inspect --corpus corpus.jsonl --results results.jsonl -q
document=merge good merge results.jsonl
document=doctor good doctor $s kept.kvz
for command in inspect analyze "compress -o x.kvz" "decompress -o x" verify "convert --to npz -o x.npz" "diff $s" "frame inspect" bench \
  "replay-h2o --trace $trace" "advise --trace $trace --min-ratio 2" "replay-lossless --mode store" "replay-blend --chunks x --full" \
  "plan check plan.json --snapshot" "trace inspect" "replay-mlp --weights $bin" gate "weights inspect" "weights verify" "weights diff $bin" \
  "weights convert -o x.bin"; do
  fails $command no-such-file
done
fails formats --nonsense
fails targets extra
fails no-such-command
echo "{" > config.json; fails gate config.json
head -c 3000 $s > cut.bin; fails inspect cut.bin; jq -c '.errors[0] | [.file, .offset, .hint != null]' out.json
# Results from before the failure stay in the document.
"$KVTOOL" inspect $s cut.bin --json 2> err.txt | jq -c '[.exit_code, [.results[].inputs[0].file], [.errors[].file]]' || true
"$KVTOOL" inspect $s cut.bin --json-out told.json > table 2> err.txt || jq -c '[.exit_code, (.results | length), (.errors | length)]' told.json
"$KVTOOL" inspect $s --json-out told.json --json 2> err.txt | jq -c '[.exit_code, (.results | length), .errors[0].finding]' || true
$VALIDATE < all.jsonl
# A request for version 1, by flag or variable, fails and says that version 2 is the only one; the flag overrides the
# variable.
"$KVTOOL" targets --json --json-version 1 2> err.txt | jq -c '[.schema, .exit_code, .errors[0].message]' || true
"$KVTOOL" targets --json --json-version=1 > out.json 2> err.txt || echo "refused: $?"
KVTOOL_JSON_VERSION=1 "$KVTOOL" targets --json 2> err.txt | jq -c '[.schema, .exit_code, .errors[0].message]' || true
KVTOOL_JSON_VERSION=1 "$KVTOOL" targets --json --json-version 2 | jq -r .schema
KVTOOL_JSON_VERSION=2 "$KVTOOL" targets --json | jq -r .schema
KVTOOL_JSON_VERSION=3 "$KVTOOL" targets --json 2> err.txt | jq -c '[.schema, .exit_code, .errors[0].message]' || true
"$KVTOOL" inspect --json -h | sed -n 1p
