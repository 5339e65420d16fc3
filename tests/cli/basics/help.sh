# Prints the first screen, -h of every command and verb, and their examples.
export KVTOOL; "$PYTHON" "$SHARED_SUITE/check_help.py"
"$KVTOOL" help > overview; "$KVTOOL" --help | cmp - overview; "$KVTOOL" | cmp - overview || echo "exit ${PIPESTATUS[0]}"
grep -o '^  [a-z]*' overview | xargs
# Commands of two words also have older names, and help can be requested in several ways.
"$KVTOOL" replay evict -h > short; "$KVTOOL" replay-h2o -h | cmp - short; head -1 short
"$KVTOOL" help replay evict > long; "$KVTOOL" replay evict --help | cmp - long; "$KVTOOL" help replay-h2o | cmp - long; "$KVTOOL" help evict | cmp - long
"$KVTOOL" -v inspect x || echo "exit $?"
"$KVTOOL" help store watch | sed -n 1p; "$KVTOOL" store watch -h | sed -n 1p
"$KVTOOL" help replay | sed -n '/^Verbs/,$p' | grep -o '^  [a-z]* ' | xargs
"$KVTOOL" replay || echo "exit $?"
"$KVTOOL" replay evcit run || echo "exit $?"
"$KVTOOL" help replay evcit || echo "exit $?"
# help TOPIC prints what the command of that name prints.
"$KVTOOL" help formats | cmp - <("$KVTOOL" formats); "$KVTOOL" help targets --json | jq -r .schema
"$KVTOOL" help schema inspect | cmp - <("$KVTOOL" schema inspect)
# A command that needs a second word lists its subcommands.
for topic in report completion; do "$KVTOOL" help $topic | cmp - <("$KVTOOL" $topic --help) && echo "$topic: its help"; done
for topic in KV1001 1001 "explain KV1001"; do "$KVTOOL" help $topic | sed -n 1p; done
"$KVTOOL" help completion bash | cmp - <("$KVTOOL" completion bash); "$KVTOOL" help man replay evict | sed -n 3p
"$KVTOOL" help batch | grep -o -e '--[a-z-]*' | sed -n 1,8p | xargs
"$KVTOOL" help engines | grep -o '^  [a-z]* [a-z]* ' | xargs
"$KVTOOL" help nonsense || echo "exit $?"
# Options for many inputs are listed once and work everywhere; hidden options that state the default are accepted.
"$KVTOOL" inspect --help | grep -c -e '--files-from' || "$KVTOOL" inspect --help | grep 'help batch'
"$KVTOOL" weights verify --help | grep -e '--strict' || "$KVTOOL" weights verify --strict none 2>&1 | grep -o KV0101 || :
"$KVTOOL" compress --help | grep -e '--keep$' || "$KVTOOL" compress --keep none 2>&1 | grep -o KV0101 || :
"$KVTOOL" version | cmp - <("$KVTOOL" -V); "$KVTOOL" version --json | jq -r .schema
