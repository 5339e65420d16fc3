advise() { status=0; "$KVTOOL" advise "$TESTDATA/trace/kjv3m.seq0.bin" "$@" || status=$?; echo "$status"; }
trace=$TESTDATA/trace/kjv3m
advise
advise --trace "$trace" --prompt-tokens 48 --max-kl 0.02
advise --trace "$trace" --prompt-tokens 48 --max-kl 0.02 --max-error 5%
advise --trace "$trace" --prompt-tokens 48 --max-error 5x
advise --trace "$trace" --prompt-tokens 48 --min-ratio 0.5
advise --trace "$trace" --prompt-tokens 48 --policies lru
advise --trace "$trace" --prompt-tokens 48 --policies tova,oracle-mass
advise --trace "$trace" --prompt-tokens 48 --policies full
advise --trace "$trace" --prompt-tokens 48 --budgets 1.5
advise --trace "$trace" --prompt-tokens 48 --recent 2
advise --trace "$trace" --trace "$trace"
advise --trace "$trace" --prompt-tokens 48 --sensitivity nothing.json
"$KVTOOL" advise "$trace.seq0.bin" "$trace.seq0.bin" --trace "$trace" --trace "$trace" --prompt-tokens 48 --plan-out plan.json || echo $?
"$KVTOOL" advise nosuch --max-error 10% || echo "not there: $?"
