# Every kind of input has its output, and the exit status gives the verdict.
cp "$TESTDATA/trace/s260k.seq0.bin" slot.bin
"$KVTOOL" compress -q slot.bin -o whole.kvz
cp whole.kvz bad.kvz; printf XXXX | dd of=bad.kvz bs=1 seek=30000 conv=notrunc status=none
head -c 60000 whole.kvz > cut.kvz
head -c 3000 slot.bin > cut.bin
: > empty.bin
echo "no cache" > text.txt
$PYTHON "$SHARED_SUITE/made_files.py"
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" run
cp "$TESTDATA/golden/mnn/codec/f16_smooth_walk_8192.zstd.frame.bin" k.gear
cp "$TESTDATA/golden/infinilm/bin/full_f5_from_fp32_as_fp16.bin" weights.bin
cp "$TESTDATA/golden/infinilm/bin_bad/wcount_5.bin" wrong-weights.bin
cp "$TESTDATA/llamacpp/s260k-header.gguf" model.gguf
cp "$TESTDATA/frames/keys.kvf" .
cp "$TESTDATA/gate/pass.json" gate.json; cp -r "$TESTDATA/trace" trace; cp -r "$TESTDATA/golden/infinilm/dump_kv" dump
gzip -c slot.bin > slot.gz
"$KVTOOL" replay-h2o slot.bin --trace trace/s260k --prompt-tokens 64 --budget 0.5 --no-quality --plan-out plan.json -q > /dev/null
"$KVTOOL" formats --json > formats.json
for file in slot.bin whole.kvz bad.kvz cut.kvz cut.bin empty.bin text.txt fine.npz wrong.npz large.npz run k.gear weights.bin wrong-weights.bin \
            model.gguf keys.kvf trace/s260k dump slot.gz plan.json formats.json gate.json; do
  status=0; "$KVTOOL" doctor "$file" 2> err.txt || status=$?; echo "exit $status"
done
# The worst of several inputs decides the exit status, and each input has a result.
status=0; "$KVTOOL" doctor slot.bin wrong.npz text.txt --json > all.json 2> err.txt || status=$?
jq -c --arg status $status '[$status, .exit_code, [.results[].exit_code], [.results[].sound.verdict], (.errors | length)]' all.json
$VALIDATE < all.json
"$KVTOOL" doctor slot.bin -q
# If the input is stdin, doctor suggests no next command.
for file in slot.bin whole.kvz model.gguf; do "$KVTOOL" doctor - < "$file" | cut -c1-60; done
# An archive that needs references says so, whether or not they are next to it.
cp "$TESTDATA"/references/*.kvz .
"$KVTOOL" doctor near.kvz | sed -n 2,3p
mkdir alone; mv near.kvz alone; status=0; "$KVTOOL" doctor alone/near.kvz 2> err.txt || status=$?; echo "exit $status"
