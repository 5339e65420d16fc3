# No bench log passes that is damaged, incomplete or shows a broken cache.
golden="$TESTDATA/golden/mnn/gate"
mkdir -p good/logs
cp "$golden"/logs/*.log good/logs/
echo '[{"run_id": "run_0001_p512", "log": "x/logs/run_0001.log", "return_code": 0},
       {"run_id": "run_0002_p1024", "log": "x/logs/run_0002.log", "return_code": 0}]' > good/manifest.json
echo '[H2O-LOSSLESS] layer=0 tokens=64 eff_ratio=1.4' > good/bench_stdout.log
chmod -R u+w good
. "$SHARED_SUITE/judge.bash"
cheat() { title=$1; shift; rm -rf bench; cp -r good bench; (cd bench; eval "$1"); shift; judge bench "$@"; }
log=logs/run_0002.log
utf16() { iconv -f UTF-8 -t "$1"; }
cheat "nothing" ":"
cheat "a speed" "sed -i 's/5.81 ±/1e999 ±/' $log"
cheat "a wait" "sed -i 's/18708.00 ± 3.00/nan ± nan/' $log"
cheat "a queue" "sed -i 's/2.50 ± 0.50/inf ± 0.50/' $log"
cheat "a deviation of another compiler" "sed -i 's/18708.00 ± 3.00/18708.00 ± -1.#IND/' $log"
cheat "an empty cell" "sed -i 's/18708.00 ± 3.00//' $log"
cheat "the name of its column" "sed -i 's/18708.00 ± 3.00/h2o_lossless_async_wait_us/' $log"
cheat "no number" "sed -i 's/18708.00 ± 3.00/none/' $log"
echo "--- incomplete"
cheat "a run without its log" "rm $log"
cheat "three runs, two logs" "jq '. + [{return_code: 0}]' manifest.json > new; mv new manifest.json"
cheat "a return code null" "jq '.[1].return_code = null' manifest.json > new; mv new manifest.json"
cheat "no return code" "jq 'del(.[1].return_code)' manifest.json > new; mv new manifest.json"
cheat "a return code" "jq '.[1].return_code = 137' manifest.json > new; mv new manifest.json"
cheat "a manifest cut short" "head -c 90 manifest.json > new; mv new manifest.json"
cheat "an empty manifest" "echo '[]' > manifest.json"
cheat "a log that ends after its header" "head -2 $log > new; mv new $log"
cheat "a log that ends in its row" "head -c 1100 $log > new; mv new $log"
cheat "a log that ends in its last cell" "truncate -s -5 $log"
cheat "a crash and no row" "echo 'terminate called after throwing an instance of std::bad_alloc' > $log"
cheat "an empty log" ": > $log"
cheat "a table with more rows than the logs" "cp '$golden/logs.csv' h2o_metrics.csv; rm $log manifest.json"
cheat "nothing but a crash" "rm -r logs manifest.json bench_stdout.log; echo Aborted > run.log"
cheat "nothing but a header" "rm -r manifest.json bench_stdout.log logs/run_0001.log; head -2 $log > new; mv new $log"
cheat "nothing but words" "rm -r logs manifest.json bench_stdout.log; echo hello > run.log"
title="one log, cut"; head -3 good/logs/run_0001.log > cut.log; judge cut.log
cheat "an offline estimate cut short" "echo '{\"weighted_loss' > offline_lossless_online_grouped.json"
cheat "an offline estimate without end" "echo '{\"lossless_ratio\": Infinity}' > offline_lossless_upper.json"
echo "--- damage"
line="double free or corruption (out)"
cheat "in stderr" "echo '$line' > logs/run_0002.stderr.log"
cheat "in a stdout" "echo '$line' > logs/run_0002.stdout.log"
cheat "in a stdout of the folder" "echo '$line' > run_0002.stdout.log"
cheat "in the baseline's log" "mkdir -p baseline_batch/logs; (cat $log; echo '$line') > baseline_batch/logs/run.log"
for code in UTF-16LE UTF-16BE UTF-16; do
  cheat "in $code" "echo '± Invalid KV realloc: 3' | utf16 $code > logs/run_0002.stderr.log"
  cheat "a table in $code" "(cat $log; echo '$line') | utf16 $code > new; mv new $log"
done
cheat "in UTF-16LE after 8-bit text" "echo 'Invalid KV realloc: 3' | utf16 UTF-16LE >> $log"
cheat "in 8-bit text after UTF-16" "(utf16 UTF-16 < $log; echo '$line') > new; mv new $log"
cheat "tables in UTF-16 are read" "for f in logs/*.log; do utf16 UTF-16 < \$f > new; mv new \$f; done"
cheat "fallbacks" "sed -i 's/0.00 ± 0.00 | 0.00 ± 0.00 | 2.00/1.00 ± 0.00 | 0.00 ± 0.00 | 2.00/' $log"
cheat "fallbacks that are allowed" "sed -i 's/0.00 ± 0.00 | 0.00 ± 0.00 | 2.00/1.00 ± 0.00 | 0.00 ± 0.00 | 2.00/' $log" --max-lossless-fallback 1
cheat "fallbacks of a line" "echo '[H2O-LOSSLESS] layer=1 tokens=64 eff_ratio=1.0 fallback=2' >> bench_stdout.log"
cheat "nothing is compressed" "sed -i 's/1.50 ± 0.00 | 1.10 ± 0.00/0.00 ± 0.00 | 0.00 ± 0.00/' logs/*.log" --runtime-mode store
cheat "a return code of the folder" ":" --return-codes bench=9
cheat "a return code of another" ":" --return-codes logs=0
cheat "two runs in one log" "cat logs/run_0001.log >> $log; rm logs/run_0001.log manifest.json"
title="a table that is cut"; head -c 800 "$golden/logs.csv" > cut.csv; judge cut.csv
echo "--- JSON results"
echo '{"results": [{"prompt_len": 512, "generate_len": 128, "decode_tps": 6, "h2o_lossy_ratio": 3.1, "h2o_lossless_ratio": 1.4,
  "h2o_lossless_raw_mb": 1.5, "h2o_lossless_comp_mb": 1, "h2o_lossless_async_wait_us": 9}]}' > results.json
results() { title=$1; rm -rf bench; mkdir bench; sed "$2" results.json > bench/results.json; judge bench; title="$1, alone"; judge bench/results.json; }
results "nothing" ""
results "a speed" 's/"decode_tps": 6/"decode_tps": 1e999/'
results "a wait" 's/"h2o_lossless_async_wait_us": 9/"h2o_lossless_async_wait_us": NaN/'
results "a wait that is null" 's/"h2o_lossless_async_wait_us": 9/"h2o_lossless_async_wait_us": null/'
echo "--- beside an older report"
cheat "a report" "cp '$golden/gate_pass_store.md' summary.md"
echo '{"schema": "kvtool.gate-config/1", "expected_cases": ["runtime_store"]}' > part.json
config=part.json
older() { title=$1; rm -rf suite bench; mkdir -p suite; cp -r good suite/runtime_store; (cd suite/runtime_store; cp "$golden/gate_pass_store.md" summary.md; cp "$golden/online_ok.json" offline_lossless_online_grouped.json; chmod u+w ./*; eval "$2"); judge suite; }
older "nothing" ":"
older "damage beside it" "mv logs/*.log .; echo 'Segmentation fault (core dumped)' > run_0002.stderr.log"
older "damage in a console" "echo 'munmap_chunk(): invalid pointer' > ../runtime_store.console.log"
older "slower than it says" "sed -i 's/5.81 ±/2.81 ±/' $log"
older "a log is gone" "rm $log manifest.json"
older "all rows are gone" "echo Killed > logs/run_0001.log; rm $log manifest.json"
$VALIDATE < out.json
# Dumps next to the logs are not taken for logs, however many there are.
older "nothing, with dumps" "mkdir -p dumps/run/layer_0; (cd dumps/run/layer_0; seq 5000 | sed 's/\$/.bin/' | xargs touch)"
