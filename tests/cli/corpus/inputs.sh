# Inputs can be folders, patterns and lists. One snapshot is one input, however many files it has.
$PYTHON -m corpus_files all
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" all/run
cp -r "$TESTDATA/golden/mnn/dumps/case_fp32_h4_l1_fa64" all/mnn
names() { jq -c '[.results[].inputs[].file]'; }
"$KVTOOL" inspect -r all --json | tee inspect.json | names
$VALIDATE < inspect.json
"$KVTOOL" inspect -r all -v --json 2>&1 > /dev/null | grep 'left out:'
# Every command names its inputs in the same way.
"$KVTOOL" analyze 'all/pair/*.safetensors' --json | names
"$KVTOOL" replay-h2o -r all --policy streaming --json | names
"$KVTOOL" replay-quant -r all --k q8_0 --v q8_0 --json 2> /dev/null | names
"$KVTOOL" doctor -r all/pair all/run --json | jq -c '[.results[].kind]'
"$KVTOOL" compress -r all --output-dir out -q && find out -type f | sort
"$KVTOOL" compress -r all/pair --output-dir out -f 2>&1 | tail -1 | sed "s,[^ ]* [KM]iB/s,SPEED,"
"$KVTOOL" verify -r out -q && echo intact
"$KVTOOL" decompress -r out/all/pair --output-dir back -q && diff -r back/out/all/pair all/pair && echo the same
"$KVTOOL" convert all/pair/*.safetensors --to npz --output-dir as-npz -q && find as-npz -type f | sort
# A list with NUL as its separator can have any name.
printf '%s\n' 'all/pair/b c.safetensors' all/layers > list
"$KVTOOL" inspect --files-from list --json | names
find all/pair -name '*.safetensors' -print0 | sort -z | "$KVTOOL" inspect --files-from - -0 --json | names
# The result does not depend on how many inputs run at once.
"$KVTOOL" analyze -r all --deterministic > one.txt
"$KVTOOL" analyze -r all --deterministic --jobs 4 > four.txt && cmp one.txt four.txt && echo the same
# Failures are listed at the end, and the worst status wins.
head -c 500 all/pair/a.safetensors > all/pair/cut.safetensors
status=0; "$KVTOOL" analyze -r all/pair --keep-going --json 2> err > out.json || status=$?
grep inputs: err; names < out.json; jq -c '[.exit_code, .errors[].file]' out.json; echo "exit $status"
status=0; "$KVTOOL" analyze all/pair/cut.safetensors all/pair/a.safetensors --json 2> /dev/null | names || status=$?
{ "$KVTOOL" analyze -r all/pair --keep-going -q --progress json 2>&1 > /dev/null || true; } | grep progress/1 | tail -1 |
  jq -c '[.schema, .inputs_done, .inputs]'
# A pipe in a folder is not an input, and nothing waits for it.
mkdir pipes && mkfifo pipes/a && cp all/pair/a.safetensors pipes/b.safetensors
"$KVTOOL" inspect -r pipes --json | names
