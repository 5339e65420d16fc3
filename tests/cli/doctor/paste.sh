# Commands that doctor suggests work as printed, with blanks and quotes in names, too.
mkdir "my caches"; cp "$TESTDATA/trace/s260k.seq0.bin" "my caches/it's \$HOME.bin"; cp "my caches/it's \$HOME.bin" ./-f.bin; cp ./-f.bin slot.bin
"$KVTOOL" compress -q slot.bin; cp slot.bin.kvz bad.kvz; printf XXXX | dd of=bad.kvz bs=1 seek=30000 conv=notrunc status=none
cp slot.bin $'odd\n\x1bname'
head -c 3000 slot.bin > cut.bin; : > empty.bin; echo text > text.txt; gzip -c slot.bin > slot.gz
$PYTHON "$SHARED_SUITE/made_files.py"; rm large.npz
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" run
cp "$TESTDATA/golden/mnn/codec/f16_smooth_walk_8192.zstd.frame.bin" k.gear
cp "$TESTDATA/golden/infinilm/bin/full_f5_from_fp32_as_fp16.bin" weights.bin
cp "$TESTDATA/golden/infinilm/bin_bad/wcount_5.bin" wrong-weights.bin; cp "$TESTDATA/llamacpp/s260k-header.gguf" model.gguf; cp "$TESTDATA/frames/keys.kvf" .; cp -r "$TESTDATA/trace" trace
cp -r "$TESTDATA/golden/infinilm/dump_kv" dump; cp -r "$TESTDATA/golden/mnn/dumps/case_fp16_h8_l1_fa64" mnn
"$KVTOOL" formats --json > formats.json
$PYTHON "$SHARED_SUITE/paste.py" "$KVTOOL" "my caches/it's \$HOME.bin" ./-f.bin slot.bin slot.bin.kvz bad.kvz $'odd\n\x1bname' cut.bin empty.bin \
  text.txt slot.gz fine.npz wrong.npz run run/ k.gear wrong-weights.bin weights.bin model.gguf keys.kvf trace/s260k dump mnn formats.json absent.bin
# Commands with a placeholder work once it is filled in; here all files are of one run.
mkdir filled; cd filled; cp "$TESTDATA/trace/s260k.seq0.bin" slot.bin; mkdir trace logs alone
cp "$TESTDATA"/trace/s260k-*.npy trace; cp ../model.gguf "$TESTDATA/profiles/s260k.kvp" .; cp "$TESTDATA"/llamacpp/logs/*.* logs
"$KVTOOL" convert -q slot.bin --kv-heads 4 --to safetensors -o heads.safetensors
"$KVTOOL" replay-h2o slot.bin --trace trace/s260k --prompt-tokens 64 --budget 0.5 --no-quality --plan-out plan.json -q > /dev/null
"$KVTOOL" store add -q states.store slot.bin
cp heads.safetensors alone
"$KVTOOL" inspect slot.bin heads.safetensors --results results.jsonl -q > /dev/null
"$KVTOOL" gate slot.bin --kv-heads 4 -o summary.json -q > /dev/null
"$KVTOOL" gate --init slot.bin --kv-heads 4 -o gate.json -q > /dev/null
printf '| a | b |\n|---|---|\n| 1 | 2 |\n' > table.md
$PYTHON "$SHARED_SUITE/paste.py" --fill "CACHE=slot.bin TRACE=trace/s260k N=64 DTYPE:ORDER:SIZES=u8:TD:?,1" "$KVTOOL" alone/heads.safetensors model.gguf \
  s260k.kvp trace/s260k ../run/trace states.store results.jsonl summary.json gate.json logs logs/*.* "$TESTDATA/golden/mnn/gate/logs" table.md \
  | sed "s|$TESTDATA||g"
$PYTHON "$SHARED_SUITE/paste.py" --fill "CACHE=slot.bin N=4" "$KVTOOL" slot.bin plan.json
cd ..
# On a narrow terminal the block can still be pasted into a shell.
mkdir "a folder of caches that came from elsewhere"; cp "$TESTDATA/trace/s260k.seq0.bin" "a folder of caches that came from elsewhere/it's one.bin"
$PYTHON "$SHARED_SUITE/narrow.py" "$KVTOOL" "a folder of caches that came from elsewhere/it's one.bin"
$PYTHON "$SHARED_SUITE/narrow.py" "$KVTOOL" ./-f.bin
ls "a folder of caches that came from elsewhere"
