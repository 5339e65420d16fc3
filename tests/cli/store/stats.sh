# stats tells which states share what, and which removals free bytes without losing a state.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
for tokens in 100 300; do "$KVTOOL" convert -q "$state" --to llama-state --tokens "0:$tokens" -o "save$tokens"; done
printf 'opaque, and of no use to others' > alone
"$KVTOOL" store add -q states save300 --name chat
"$KVTOOL" store stats states --json > one.json
$VALIDATE < one.json
jq -c '.results[0] | .recommendation, .older_states, [.uses[] | .name, .shared_bytes, .newest]' one.json
# Removing an older version whose rows another name needs, too, frees only its record.
"$KVTOOL" store add -q states "$state" --name chat
"$KVTOOL" store add -q states save300 --name twin
"$KVTOOL" store stats states --json | jq -c '.results[0] | .recommendation.kind, .older_states, .older_bytes == ([.uses[] | select(.newest | not) | .own_stored_bytes] | add)'
# Older versions that nothing else needs: pruning frees the stated bytes, and is not recommended.
"$KVTOOL" store add -q states alone --from opaque --name chat2
"$KVTOOL" store add -q states save100 --name chat2
"$KVTOOL" convert -q "$TESTDATA/trace/kjv3m.seq0.bin" --to llama-state --tokens 0:90 -o other
"$KVTOOL" store add -q states other --name chat2
"$KVTOOL" store add -q states save100 --name chat2
"$KVTOOL" store stats states --json > before.json
jq -r '.results[0].recommendation | .kind, .command' before.json
"$KVTOOL" store prune states --keep-last 1 -q
"$KVTOOL" store stats states --json > after.json
jq -n -c --slurpfile a before.json --slurpfile b after.json '$a[0].results[0] as $a | $b[0].results[0] as $b | ($a.pack_bytes + $a.record_bytes - $b.pack_bytes - $b.record_bytes - $a.older_bytes | fabs) < 200'
"$KVTOOL" store stats states | tail -1
"$KVTOOL" store verify -q states
