# `advise --confirm` refuses what cannot be confirmed before it measures, and prints its advice if the model's side fails.
$PYTHON "$SHARED_SUITE/made_run.py" "$TESTDATA" run
printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$PYTHON" "$SHARED_SUITE/closed_loop_stub.py" > loop
chmod +x loop
try() {
  status=0
  "$KVTOOL" advise "$@" --policies h2o --budgets 0.5,0.25 --recent 0.5 --progress never > out 2> told || status=$?
  { grep -v -e warning -e confirming told || :; }
  echo "$status: $(grep -c ^answer out || :)"
}
try run --confirm --python ./loop
try run --python ./loop
try "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 64 --confirm --model tiny.gguf --sensitivity run/sensitivity.json
try run --confirm --model tiny.gguf --max-error 5%
try run --confirm --model tiny.gguf --python ./nosuch
try run --confirm --model tiny.gguf --python ./loop --max-kl 0
grep 'no plan was chosen' told
for how in status signal nothing cut schema long kl=NaN kl=-0.1 kl=1e9 'kl="0"' kl=null kl_standard_error=-1 rows=-1 rows=1e99 plan=3 plan=[] 'plan={"real":[]}'; do
  echo "$how"
  STUB=$how try run --confirm --model tiny.gguf --python ./loop --max-kl 0.0002
done
echo "too few"
LOSSES="1" try run --confirm --model tiny.gguf --python ./loop --max-kl 0.0002
# A failure leaves the advice and no file.
mkdir tmp
{
  STUB=status TMPDIR=$PWD/tmp "$KVTOOL" advise run --policies h2o --budgets 0.5,0.25 --confirm --model tiny.gguf --python ./loop --json -q || :
} 2> /dev/null | jq -c '.exit_code, (.results | length), [.errors[].message]'
ls -A tmp
rm run/trace/g.* run/sensitivity.json
sed -i 's/, "sensitivity": "sensitivity.json"//' run/run.json
try run --confirm --model tiny.gguf
