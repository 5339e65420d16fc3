# Every document that --json prints, in both versions and of a failure, is as its schema says.
cp "$TESTDATA/trace/s260k.seq0.bin" slot.bin; s=slot.bin; trace="$TESTDATA/trace/s260k"; blend="$TESTDATA/golden/blend/replay"
bin="$TESTDATA/golden/infinilm/bin/full_f5_from_fp32_as_fp16.bin"
"$KVTOOL" compress $s -o kept.kvz -q
"$KVTOOL" frame encode -q --dtype f16 "$TESTDATA/golden/mnn/codec/f16_smooth_walk_8192.in.bin" -o k.gear
"$KVTOOL" replay-h2o $s --trace "$trace" --prompt-tokens 64 --budget 0.5 --no-quality --plan-out plan.json -q > /dev/null
h2o="--trace $trace --prompt-tokens 64"
both() { # name, words; %d in them is the version
  for version in 1 2; do
    status=0; "$KVTOOL" "${@//%d/$version}" --json --json-version $version > out.json 2> err.txt || status=$?
    jq -c 'if type == "array" then .[] else . end' out.json >> all.jsonl
    [ "$(tail -1 all.jsonl | jq -r .schema)" = "kvtool.$document/$version" ] || cat out.json err.txt
  done
  jq -e ".exit_code == $status and (.results | length > 0) and ([.results[] | has(\"inputs\")] | all)" out.json > /dev/null || cat out.json
}
fails() { # words that are refused: version 1 says nothing, version 2 what is wrong
  status=0; "$KVTOOL" "$@" --json > out.json 2> err.txt || status=$?
  jq -c . out.json >> all.jsonl
  jq -c --arg status $status '[.schema, .exit_code, $status, (.results | length), .errors[0].finding]' out.json
  "$KVTOOL" "$@" --json --json-version 1 2> err.txt || true
}
mkdir corpus; cp $s corpus; "$KVTOOL" corpus make corpus -o corpus.jsonl -q
document=inspect both inspect $s kept.kvz --stats
document=inspect both inspect $s missing.bin
document=analyze both analyze $s --level compat --distribution
document=compress both compress $s -o %d.kvz
document=decompress both decompress kept.kvz -o %d.bin
document=decompress both decompress kept.kvz --kv-heads 4 --to npz -o %d.npz
document=verify both verify kept.kvz --against $s
document=convert both convert $s --kv-heads 4 --to npz -o c%d.npz
document=diff both diff $s kept.kvz
document=frame both frame inspect k.gear
document=bench both bench $s --rounds 1 --levels default --chunk 64KiB
document=h2o both replay-h2o $s $h2o --target-ratio 2 --detail
document=advise both advise $s $h2o --policies window --budgets 0.5 --min-ratio 1.5 --rows 8
document=replay-lossless both replay-lossless $s --trace "$trace" --mode store --prompt-tokens 96
document=blend both replay-blend --full "$blend/full.safetensors" --chunks "$blend"/chunk?.safetensors --layout thd --rope-base 1e4
document=plan-check both plan check plan.json --snapshot $s --kv-heads 4
document=trace both trace inspect "$trace"
document=quant both replay-quant $s --trace "$trace" --prompt-tokens 64 --k q8_0 --v q8_0 --rows 8
document=replay-mlp both replay-mlp "$TESTDATA/golden/infinilm/dump_kv" --weights "$bin" --dry-run
document=gate both gate --snapshot $s $h2o --case runtime_probe -q
document=weights-inspect both weights inspect "$bin" --stats
document=weights-verify both weights verify "$bin"
document=weights-diff both weights diff "$bin" "$bin"
document=weights-convert both weights convert "$TESTDATA/golden/infinilm/pth/full_f5_fp32_flat.pth" -o w%d.bin
document=formats both formats
document=targets both targets
document=corpus-check both corpus check corpus.jsonl
"$KVTOOL" inspect --corpus corpus.jsonl --results results.jsonl -q
document=merge both merge results.jsonl
document=doctor both doctor $s kept.kvz
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
# What was done before the failure stays.
"$KVTOOL" inspect $s cut.bin --json 2> err.txt | jq -c '[.exit_code, [.results[].inputs[0].file], [.errors[].file]]' || true
"$KVTOOL" inspect $s cut.bin --json-out told.json > table 2> err.txt || jq -c '[.exit_code, (.results | length), (.errors | length)]' told.json
"$KVTOOL" inspect $s --json-out told.json --json 2> err.txt | jq -c '[.exit_code, (.results | length), .errors[0].finding]' || true
$VALIDATE < all.jsonl
# The variable says the version, the flag has the last word.
KVTOOL_JSON_VERSION=1 "$KVTOOL" targets --json | jq -r .schema
KVTOOL_JSON_VERSION=1 "$KVTOOL" targets --json --json-version 2 | jq -r .schema
KVTOOL_JSON_VERSION=3 "$KVTOOL" targets --json 2> err.txt | jq -c '[.schema, .exit_code]' || true
KVTOOL_JSON_VERSION=1 "$KVTOOL" inspect --json --nonsense 2> err.txt || echo "nothing: $?"
"$KVTOOL" inspect --json -h | head -1
