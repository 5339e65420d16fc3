# Tests eviction and smaller types on one frontier. numpy computes the error and bytes of the chosen point from its two
# files and the cache.
trace=$TESTDATA/trace/kjv3m
advise() { "$KVTOOL" advise "$trace.seq0.bin" --trace "$trace" --prompt-tokens 48 -q "$@"; }
advise --max-error 10% --types q8_0 --rows 0 --chosen-plan-out plan.json --quant-plan-out types.json --json > advice.json 2> told
$VALIDATE < advice.json
$VALIDATE < plan.json
$VALIDATE < types.json
"$KVTOOL" convert "$trace.seq0.bin" --kv-heads 2 --to npz -o cache.npz -q
"$PYTHON" "$SHARED_SUITE/both_error.py" advice.json plan.json cache.npz "$trace"
jq -c '.results[0].savings.chosen | .kind, (.measured_again[0] - .worst_loss | fabs < 1e-6), (.expected_loss <= 0.1), .flags' advice.json
# The plan of tokens and the plan of types are read by the commands that apply them.
"$KVTOOL" plan check plan.json --snapshot "$trace.seq0.bin" --kv-heads 2 > /dev/null && echo "a plan"
"$KVTOOL" replay-quant "$trace.seq0.bin" --trace "$trace" --prompt-tokens 48 --plan types.json -q > /dev/null 2>&1 && echo "types"
# Every point of the frontier has fewer bytes and a larger loss than the one before it.
jq -c '[.results[0].frontier // [] | length > 0], (.results[0].savings | keys)' advice.json
# A limit on bytes gives the least loss within it. Without types the advice is about eviction alone.
advise --bytes-per-token 1400 --json | jq -c '.results[0].savings.chosen | (.bytes_per_token <= 1400), (.expected_loss > 0)'
advise --max-error 10% --types none --json | jq -c '.results[0] | has("savings"), (.best != null)'
# Other numbers of threads give the same document.
advise --max-error 10% --json -T 1 | jq -c 'del(.results[0].engines)' > one.json
advise --max-error 10% --json -T 3 | jq -c 'del(.results[0].engines)' > three.json
cmp one.json three.json && echo "the same"
for wrong in "--types q9" "--types q8_0,none" "--bytes-per-token 0" "--types q8_0 --quant-plan-out /nowhere/types.json" "--types none --quant-plan-out t.json"; do
  "$KVTOOL" advise "$trace.seq0.bin" --trace "$trace" --prompt-tokens 48 --max-error 10% --progress never $wrong > /dev/null 2> told && echo "taken: $wrong" || echo "$?: $(grep -v warning told | sed -n 1p)"
done
