# Advice for many saved states without a trace: what they share, which are idle, and a command that works as printed.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
mkdir slots
for tokens in 100 300; do "$KVTOOL" convert -q "$state" --to llama-state --tokens "0:$tokens" -o "slots/turn$tokens"; done
cp "$state" slots/whole
# Another tail: only the last value of the last row differs.
cp "$state" slots/edited && printf '\377' | dd of=slots/edited bs=1 seek=$(($(stat -c %s "$state") - 1)) conv=notrunc status=none
cp "$state" slots/twin && touch -d 2020-01-02 slots/twin
cp "$TESTDATA/trace/kjv3m.seq0.bin" slots/other
advise() { "$KVTOOL" advise slots --json -q "$@"; }
advise > all.json
$VALIDATE < all.json
jq -r '.schema, (.results[0].states[] | "\(.name): \(.tokens) tokens, \(.kinship) \(.kin) \(.shared_tokens), contained: \(.contained), idle: \(.idle)")' all.json
jq -c '.results[0] | .idle_states, .contained_states, [.levels[].level], ([.levels[].encode_mb_per_s > 0] | all), .sample.states' all.json
# The document is the same for any number of threads; --deterministic leaves out speeds and times.
advise --deterministic -T 1 > one.json
advise --deterministic -T 3 > three.json
cmp one.json three.json && jq -c '.results[0] | .idle_states, .states[0].written, .levels[0].encode_mb_per_s' one.json
# Inspecting files does not count as using them: their access times are unchanged.
before=$(stat -c %X slots/twin)
advise > /dev/null
test "$before" = "$(stat -c %X slots/twin)" && echo "not read"
# No state has been idle for the largest possible number of days.
advise --idle-days 18446744073709551615 | jq -c '.results[0].idle_states'
# Listing the folder of a dump repeatedly does not count as use either.
mkdir dumps && "$KVTOOL" convert -q "$state" --kv-heads 4 --to mnn-dump -o dumps/old && cp "$state" dumps/whole
find dumps/old -type f -exec touch -d 2020-01-02 {} +
for time in 1 2; do "$KVTOOL" advise dumps --json -q; done | jq -c '.results[0].states[] | select(.name == "old") | .idle'
# The command saves as much as estimated or more: rows similar to another state's cost less than the sample predicts.
command=$(jq -r '.results[0].recommendation.command' one.json)
echo "$command"
eval "\"$KVTOOL\" ${command#kvtool } -q"
on_disk=$(du -sb slots.store/packs | cut -f1)
jq -c --argjson is "$on_disk" '.results[0].recommendation | .kind, (.bytes / $is > 0.75 and .bytes / $is < 1.5)' one.json
"$KVTOOL" store get -q slots.store edited -c | cmp - slots/edited
# Before the files may be deleted, one more command verifies the result.
verify=$(jq -r '.results[0].recommendation.verify_command' one.json)
echo "$verify"
eval "\"$KVTOOL\" ${verify#kvtool } -q"
# States are added in the order that makes the store smallest: fewest tokens first.
"$KVTOOL" store add -q other.store slots/whole slots/turn300 slots/turn100 slots/edited slots/twin slots/other
test "$on_disk" -lt "$(du -sb other.store/packs | cut -f1)" && echo "smaller"
# The output fits 24 lines of 80 columns.
"$KVTOOL" advise --no-progress slots > text.txt
test "$(wc -l < text.txt)" -le 24 && grep -c . text.txt > /dev/null && tail -3 text.txt
"$KVTOOL" advise slots --html-out page.html --csv rows.csv -q && grep -o "<h2>States" page.html && head -1 rows.csv | cut -d, -f1-4
# The files are given one by one, and the states share nothing.
mkdir apart && cp slots/whole slots/other apart
"$KVTOOL" advise apart --json -q | jq -c '.results[0] | .shared_bytes, .recommendation.kind, .recommendation.command'
eval "\"$KVTOOL\" $("$KVTOOL" advise apart --json -q | jq -r '.results[0].recommendation.command' | cut -d' ' -f2-) -q" && ls apart.kvz
eval "\"$KVTOOL\" $("$KVTOOL" advise apart --json -q | jq -r '.results[0].recommendation.verify_command' | cut -d' ' -f2-) -q" && echo whole
"$KVTOOL" advise slots/turn100 slots/turn300 --json -q | jq -c '.results[0] | [.states[].name], .recommendation.command'
# Advice that needs a trace still asks for one.
"$KVTOOL" advise --no-progress slots/turn100 slots/turn300 --max-error 5% > /dev/null 2>&1 || echo $?
"$KVTOOL" advise --no-progress slots --plan-out plan.json > /dev/null 2>&1 || echo $?
