expect() { local want=$1; shift; set +e; "$KVTOOL" analyze "$@" > out; local got=$?; set -e; [ $got = $want ] || echo "status $got, expected $want: $*"; }
cp -r "$TESTDATA/golden/mnn/offline/dump" .
dump=dump
expect 2 "$dump/run_a" --entry-mode aggregate
expect 2 "$dump/run_a" --offline-codec adaptive --scope layer_ids
expect 2 "$dump/run_a" --offline-codec adaptive --k-hi-predictors delta
expect 2 "$dump/run_a" --distribution --packed --csv-out x.csv
expect 2 "$dump/run_a" --reports-only
expect 4 nowhere.bin
touch there.json
expect 4 "$dump/run_a" -q --offline-codec legacy --offline-json-out there.json
