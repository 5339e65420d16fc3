# A missing config and a missing baseline each say how to get one.
config="$TESTDATA/gate/pass.json"
"$KVTOOL" gate nothing.json || echo "exit $?"
"$KVTOOL" gate "$config" --baseline last.json || echo "exit $?"
