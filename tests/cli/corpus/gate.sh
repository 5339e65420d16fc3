# One config judges each of many inputs; merged results of shards equal those of one run.
made() { $PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" "$1"; }
mkdir runs; made runs/a; cp -r runs/a runs/b; cp -r runs/a runs/other; cp -r runs/a runs/cut
$PYTHON "$SHARED_SUITE/../gate/damage_run.py" "$KVTOOL" runs/a runs/worse worse
head -c 30000 runs/a/snapshot.bin > runs/cut/snapshot.bin
$PYTHON -m corpus_gate > nightly.json; $VALIDATE < nightly.json
"$KVTOOL" corpus make runs -o corpus.jsonl -q
gate() { local status=0; "$KVTOOL" gate "$@" 2> err || status=$?; echo "exit $status"; }
gate nightly.json -r runs --keep-going --deterministic | grep -E 'gate|exit'; grep inputs: err
gate nightly.json runs/a 'runs/w*' --deterministic --json -q > out.json; tail -1 out.json
sed '$d' out.json > many.json; $VALIDATE < many.json
jq -c '[.results[] | [.verdict, (.cases[].rules[] | select(.reproduce) | .reproduce)]]' many.json
gate nightly.json runs/worse -o summary.json -q > /dev/null; jq -c .verdict summary.json
# Without a config each run is judged by the cases that fit it, or by those of the suite.
gate runs/a runs/b --deterministic | grep -cE '^[ab]-(stored|evicted) '
gate --suite mnn runs/a runs/b --deterministic | grep -cE '^(runtime|llm_demo)_[a-z]+ '
# The shards are run one by one, and then merged.
run() { gate nightly.json --corpus corpus.jsonl --keep-going -q "$@"; }
run --results all.jsonl
for i in 0 1; do run --results s$i.jsonl --shard $i/2; done
lines() { cat "$@" | jq -cS 'select(.name) | del(.shard, .elapsed_us)' | sort; }
cmp <(lines all.jsonl) <(lines s0.jsonl s1.jsonl) && echo the same
head -1 all.jsonl | jq -c '[.command, .parameters]'
grep -v '"schema":"kvtool.results' all.jsonl | while read -r line; do echo "$line" | $VALIDATE; done | sort | uniq -c
cp all.jsonl before.jsonl; run --results all.jsonl; cmp all.jsonl before.jsonl && echo nothing was done again
# These options cannot be combined with many inputs.
no() { gate "$@" > out; tail -1 out; head -1 err >&2; }
no nightly.json runs/a runs/b -o summary.json
no nightly.json runs/a runs/b --baseline summary.json --keep-going
no nightly.json runs/a --snapshot runs/b
no runs/a --engine-logs runs
no "$TESTDATA/gate/pass.json" runs/a
no - --corpus corpus.jsonl --results r.jsonl < nightly.json
no --init --corpus corpus.jsonl --results r.jsonl
no missing.json runs/a
# Merged, the verdict covers all inputs, whatever the shards; JUnit has a suite for each input.
merge() { local status=0; "$KVTOOL" merge "$@" --deterministic || status=$?; echo "exit $status"; }
merge all.jsonl --junit-out all.xml --html-out all.html -o all.json
merge s1.jsonl s0.jsonl --junit-out two.xml --html-out two.html -o two.json -q > /dev/null
# Pages name their command in the footer; everything else is compared.
without_footer() { sed '/<footer>/,/<\/footer>/d' "$1"; }
for kind in xml html json; do cmp <(without_footer all.$kind) <(without_footer two.$kind) && echo the same $kind; done
$VALIDATE < all.json
$PYTHON -c 'import sys, xml.etree.ElementTree as tree; print(*(sorted(e.attrib.items()) for e in tree.parse(sys.argv[1]).iter() if e.tag != "testcase" and "message" not in e.attrib), sep="\n")' all.xml
grep -c '<h2>The gate' all.html || true
status=0; (cd runs && eval "$(sed 's/kvtool/"$KVTOOL"/; s/nightly/..\/nightly/' <<< "$(jq -r '.results[0].failures[] | select(.name == "worse") | .command' ../all.json)") > ../out 2> /dev/null") || status=$?; head -1 out; echo "exit $status"
