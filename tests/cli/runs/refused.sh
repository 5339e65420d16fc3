# These runs are incomplete, or refer to files elsewhere.
$PYTHON "$SHARED_SUITE/made_run.py" "$TESTDATA" good
refused() { status=0; "$KVTOOL" inspect run > /dev/null || status=$?; echo "$status"; }
try() { rm -rf run; cp -r good run; jq "$1" good/run.json > run/run.json; refused; }
try '.files.snapshot = "../good/snapshot.bin"'
try '.files.trace = "/tmp"'
try '.files.snapshot = "snapshot.txt"'
try '.files.snapshot = null'
try '.files = 1'
try '.schema = "kvtool.run/2"'
try 'del(.schema)'
try '.tokens = 0'
try '.prompt_tokens = 1000000'
try '.tokens = -1'
try '.nll = "low"'
try '.geometry.kv_heads = 70000'
try '.geometry.kv_heads = 3'
try '.rope.base = -1'
rm -rf run; cp -r good run; rm run/snapshot.bin; ln -s ../good/snapshot.bin run/snapshot.bin; refused
rm -rf run; cp -r good run; echo '{' > run/run.json; refused
rm -rf run; cp -r good run; rm run/run.json; refused
for command in "replay-h2o run" "analyze run" "gate run" "compress run" "convert run --to npz -o x.npz"; do
  status=0; "$KVTOOL" $command 2> message || status=$?
  echo "$command: $status $(grep -c 'without run.json' message)"
done
# These parts of run.json may be missing.
try 'del(.geometry, .rope, .nll, .engine, .model)'
try '.rope.scaling = {"rope_type": "yarn", "factor": 4}'
rm -rf run; cp -r good run; jq 'del(.files.trace)' good/run.json > run/run.json
for command in "trace inspect run" "replay-h2o run"; do
  status=0; "$KVTOOL" $command || status=$?; echo $status
done
