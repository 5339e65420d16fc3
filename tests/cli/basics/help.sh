"$KVTOOL" help > overview; "$KVTOOL" --help | cmp - overview; "$KVTOOL" -V
for command in $(grep '^  [a-z]' overview | awk '{print $1}'); do
  "$KVTOOL" help "$command" > long
  "$KVTOOL" "$command" -h > short
  grep -q '^Examples:' short && grep -q 'Exit status' long || echo "$command: help is incomplete"
done
