# Plans of every engine and policy are valid, with the ratio of the replay that made them; mistakes are located.
$PYTHON "$SHARED_SUITE/made_run.py" "$TESTDATA" run
check() { status=0; "$KVTOOL" plan check plan.json --snapshot run --json > check.json || status=$?; $VALIDATE check.json > /dev/null; }
for flags in "--policy h2o --budget 0.3" "--policy streaming --budget 50t" "--policy tova --granularity kv-head --target-ratio 3" \
  "--policy pyramid --snapkv-window 16 --target-ratio 2" "--engine exact --schedule mnn --block-tokens 8 --sink 4 --recent 16 --trigger-min 64" \
  "--engine mnn --block-tokens 8 --sink 4 --recent 16 --trigger-min 64" "--engine mnn-r6 --block-tokens 8 --sink 4 --recent 16 --trigger-min 64" \
  "--engine design --block-tokens 8 --sink 4 --recent 16 --trigger-min 64"; do
  "$KVTOOL" replay-h2o run $flags --no-quality --plan-out plan.json -f -q --json > replay.json 2> /dev/null
  check
  jq -nc --slurpfile a replay.json --slurpfile b check.json '[$b[0].results[0].verdict, $b[0].results[0].common, ($b[0].results[0].ratio * 1000 | round), ($a[0].results[0].runs[0].ratio * 1000 | round)]'
done
"$KVTOOL" replay-h2o run --policy streaming --budget 50t --no-quality --plan-out plan.json -f -q > /dev/null
"$KVTOOL" plan check plan.json --snapshot run
# Each of these copies of the plan has one mistake.
mv plan.json good.json
wrong() { jq -c "$1" good.json > plan.json; check; echo "$status $(jq -r '.results[].findings[0] | "\(.place): \(.text)"' check.json)"; }
wrong '.events[7].layer = 9'
wrong '.events[7].kv_head = 1'
wrong '.events[0].kv_head = 4'
wrong '.events[3].token = 400'
wrong '.events[9].token = 60'
wrong '.events[5:6] |= .[0:1] + .[0:1]'
wrong '.events[5].kept = [[4, 2], [0, 3]]'
wrong '.events[5].kept = [[0, 3], [2, 9]]'
wrong '.events[5].kept = [[0, 0]]'
wrong '.events[5].kept[-1][1] += 1'
wrong '.events[5].kept = [[0, 6]]'
wrong '.events[5].length_before += 1'
wrong '.source.xxh3 = "0000000000000000"'
wrong '.events |= map(.layer = 7)'
wrong '.events = []'
wrong '.events |= map(del(.length_before))'
# These files are not plans.
no_plan() { status=0; "$KVTOOL" plan check plan.json --snapshot run || status=$?; echo $status; }
for change in '.schema = "kvtool.h2o/1"' 'del(.events)' '.events = 3' '.events[2] = 3' 'del(.events[1].token)' '.events[1].kept = [[1]]' \
  '.events[1].kept = [[1, -1]]' '.events[1].layer = 1e9' '.unit = "index"' '.applied = "now"' 'del(.source)' '.events'; do
  jq -c "$change" good.json > plan.json; no_plan
done
head -c 300 good.json > plan.json; no_plan
echo '{"events": [{"token": 1e999}]}' > plan.json; no_plan
# Keys are rotated only if the user asks for it.
status=0; "$KVTOOL" replay-h2o run --policy streaming --re-rotate --snapshot-out small.safetensors || status=$?; echo $status
