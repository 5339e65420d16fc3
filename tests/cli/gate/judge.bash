# Sourced by the cases on engine logs.
# Prints the exit status, and each rule that fails once. $config, if set, names the cases that a suite was meant to run.
judge() {
  status=0
  "$KVTOOL" gate ${config:+"$config"} --deterministic --json -q --engine-logs "$@" > out.json 2> err.txt || status=$?
  echo "$title: exit $status"
  if [ $status = 1 ]; then
    jq -r '[.results[0].cases[].rules[] | select(.status == "fail") | "  \(.metric): \(.reason)"] | unique[]' out.json
  else
    cat err.txt
  fi
}
