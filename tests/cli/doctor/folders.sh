# The contents of folders and their neighbours are named, and the suggested command works on each.
cp "$TESTDATA/trace/s260k.seq0.bin" slot.bin
screen() { "$KVTOOL" doctor "$@" 2> /dev/null | cut -c1-110 | sed 's/ *#.*//'; }
# The trace lies beside the cache, as arrays or as a file.
cp "$TESTDATA"/trace/s260k-L?-Q.npy .; mv slot.bin s260k.seq0.bin
screen s260k.seq0.bin | grep trace || :
"$KVTOOL" replay-h2o s260k.seq0.bin --trace s260k --prompt-tokens 64 --budget 0.5 -q --no-quality > /dev/null && echo works
rm s260k-L?-Q.npy; : > s260k.trace.safetensors # the name is a trace's, but the file is empty
screen s260k.seq0.bin | grep trace || :
# The inputs are a summary without its suite, a profile, and logs.
mkdir suite; cp "$TESTDATA/golden/mnn/gate/suite/summary.json" suite
screen suite
cp "$TESTDATA/profiles/s260k.kvp" .; screen s260k.kvp
printf 'llama_model_loader: loaded meta data\nllama_perf_context_print: eval time = 1.00 ms / 2 runs\n' > server.log
screen server.log
cp "$TESTDATA/llamacpp/logs/bench.json" .; screen bench.json
mkdir logs; cp server.log logs; screen logs
# The inputs are a store, and a store whose index is a folder.
"$KVTOOL" store add store s260k.seq0.bin -q
screen store
rm store/index.sqlite*; mkdir store/index.sqlite
screen store || echo "exit $?"
mv store/index.sqlite store.index && "$KVTOOL" store verify --repair store -q && echo repaired
"$KVTOOL" doctor store suite s260k.kvp server.log --json 2> /dev/null | tee all.json | jq -c '[.results[].kind]'
$VALIDATE < all.json
