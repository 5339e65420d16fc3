# A document that nests too deep for any parser is refused, of whatever kind, by every command that reads it.
$PYTHON "$SHARED_SUITE/nested_json.py" all
cache="$TESTDATA/golden/mnn/dumps/case_fp32_h4_l1_fa64"
try() { # runs a command and prints its status, unless it crashed
  local status=0
  timeout 60 "$KVTOOL" "$@" > /dev/null 2> said || status=$?
  case $status in [0-4]) ;; *) echo "$status: $*"; head -3 said ;; esac
}
for kind in all/*; do
  for file in "$kind"/*; do
    for command in doctor inspect advise gate merge report; do try $command "$file"; done
    try diff "$file" "$cache"
  done
  for folder in run schema infinilm mnn; do try analyze "$kind/$folder"; try compress "$kind/$folder" -o out.kvz -f; done
  for file in trace call; do try trace inspect "$kind/$file.jsonl"; try replay-h2o "$cache" --trace "$kind/$file.jsonl"; done
  try plan check "$kind/plan.json" --snapshot "$cache"
  try inspect "$cache" --model "$kind/config.json"
  try gate "$cache" --baseline "$kind/summary.json"
  try inspect --corpus "$kind/corpus.jsonl"
  try corpus check "$kind/corpus.jsonl"
  try advise "$cache" --sensitivity "$kind/sensitivity.json"
  try replay-quant "$cache" --plan "$kind/types.json"
done
# With --keep-going a refused document does not stop the other files.
for command in inspect doctor analyze advise; do try $command -r all --keep-going; done
# The message names the file and the limit.
for file in run schema gate.json trace.jsonl plan.json infinilm results.jsonl; do
  "$KVTOOL" $(case $file in gate*) echo gate;; trace*) echo trace inspect;; plan*) echo plan check --snapshot "$cache";; results*) echo merge;; *) echo inspect;; esac) \
    "all/arrays/$file" 2>&1 | grep -a -m1 -v warning: || true
done
