# inspect and verify recognise a file by its content and print the same as the commands for each kind.
cp "$TESTDATA/trace/s260k.seq0.bin" slot.bin; trace="$TESTDATA/trace/s260k"
weights="$TESTDATA/golden/infinilm/bin/full_f5_from_fp32_as_fp16.bin"; pth="$TESTDATA/golden/infinilm/pth/full_f5_fp32_flat.pth"
"$KVTOOL" frame encode -q --dtype f16 "$TESTDATA/golden/mnn/codec/f16_smooth_walk_8192.in.bin" -o k.gear
"$KVTOOL" replay evict slot.bin --trace "$trace" --prompt-tokens 64 --budget 0.5 --no-quality --plan-out plan.json -q > /dev/null
"$KVTOOL" store add states slot.bin -q > /dev/null; "$KVTOOL" compress slot.bin -q
same() { # COMMAND SUBCOMMAND: takes file and flags after these two words; compares output, messages and exit status
  as=$1; general=$2; shift 2
  "$KVTOOL" $general "$@" > a.out 2> a.err && a=0 || a=$?
  "$KVTOOL" $as "$@" > b.out 2> b.err && b=0 || b=$?
  cmp a.out b.out && cmp a.err b.err && echo "$general as $as: $a $b $(grep -c . a.out || :)"
}
for json in "" --json; do
  same "trace inspect" inspect "$trace" $json
  same "plan check" inspect plan.json $json
  same "plan check" verify plan.json $json
  same "weights inspect" inspect "$weights" $json
  same "weights inspect" inspect "$pth" $json
  same "weights verify" verify "$weights" $json
  same "weights verify" verify "$TESTDATA/golden/infinilm/bin_bad/reserved_nonzero.bin" $json
  same "frame inspect" inspect k.gear $json
  same "frame inspect" verify k.gear $json
done
same "store stats" inspect states
same "store verify" verify states
# The spelling of the input and repeated flags make no difference.
echo k.gear > list
spelled() { "$KVTOOL" "$@" --json | cmp - <("$KVTOOL" frame inspect k.gear --json) && echo "spelled: $*"; }
for command in inspect verify; do
  spelled $command 'k.gea?'; spelled $command --files-from list; spelled $command --jobs 2 --keep-going k.gear
done
"$KVTOOL" inspect -v -v "$weights" --verbose > out 2> err; grep -c '(command line)' err
mkdir dashes; cp k.gear dashes/-k; cd dashes; echo -k > list; "$KVTOOL" inspect --files-from list -q --threads 1 --threads=2; cd ..
"$KVTOOL" plan check plan.json | tail -1; "$KVTOOL" plan check plan.json --json | jq -c '.results[0] | [.verdict, .layers, .full_bytes, .common]'
"$KVTOOL" plan check plan.json --json | $VALIDATE
# A flag for caches does not apply to a trace. Several files, a cache and an archive are read as caches.
"$KVTOOL" inspect "$trace" --kv-heads 4 2>&1 | sed -n 1p || :
"$KVTOOL" inspect slot.bin k.gear > out 2> err || echo "exit $?"; head -1 err
"$KVTOOL" inspect slot.bin.kvz --json | jq -r .schema
"$KVTOOL" verify slot.bin.kvz > /dev/null && echo intact
# decompress names a file that it does not read, and levels of compress have names.
for file in slot.bin k.gear; do "$KVTOOL" decompress $file 2>&1 || echo "exit $?"; done
for command in "decompress -c" verify; do "$KVTOOL" $command slot.bin 2>&1 || echo "exit $?"; done
printf 'no magic here, and long enough to be a file of something else, which nobody knows' > text; "$KVTOOL" decompress text || echo "exit $?"
"$KVTOOL" compress slot.bin -19 || echo "exit $?"
"$KVTOOL" compress -3 slot.bin 2>&1 | sed -n 1p || :
"$KVTOOL" gate "$TESTDATA/gate/pass.json" --case runtime_full --deterministic -q -o summary.json > /dev/null || echo "exit $?"
"$KVTOOL" report summary.json > report; "$KVTOOL" gate --from summary.json | cmp - report
"$KVTOOL" gate --from=summary.json --junit-out gate.xml | cmp - report; "$KVTOOL" report summary.json --junit-out report.xml | cmp - report; cmp gate.xml report.xml && echo "report and gate --from agree"
"$KVTOOL" gate --from missing.json || echo "exit $?"
