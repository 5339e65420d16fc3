cd "$TESTDATA/golden/infinilm"
for file in bin_bad/*.bin; do
  "$KVTOOL" weights verify --json "$file" > "$OLDPWD/report.json" && status=0 || status=$?
  $VALIDATE < "$OLDPWD/report.json" > /dev/null
  jq -r --arg file "$file" --arg status $status '.results[0] | [$file, $status, .faults[0].finding, .loaders.csrc.loads, .loaders.legacy.loads] | @tsv' < "$OLDPWD/report.json"
done
