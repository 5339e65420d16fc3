cd "$TESTDATA/llamacpp/states"
for file in *.seq?.bin *.session.bin; do
  case $file in *recurrent*) continue ;; esac
  "$KVTOOL" inspect --json "$file" | $VALIDATE
  "$KVTOOL" inspect --json "$file" | jq -r '.results[0] | [.format_version, (.layers | length), .k_bytes + .v_bytes, .cells[0].count, .cells[0].sequences] | @json'
done
