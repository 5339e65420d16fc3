"$KVTOOL" targets --json | $VALIDATE
"$KVTOOL" --version --json | $VALIDATE
# A name may be followed by its version. The gate's summary is also written to a file.
for name in $("$KVTOOL" schema); do
  id=$("$KVTOOL" schema "$name" | jq -r '.["$id"]')
  [ "$("$KVTOOL" schema "$id" | jq -r '.["$id"]')" = "$id" ] || echo "$name: $id"
  [ "$("$KVTOOL" schema --json-version 2 "$name" | jq -r '.["$id"]')" = "$id" ] || echo "$name by flag"
  case $id in */1) echo "$id" ;; esac
done
"$KVTOOL" schema gate/1 | jq -r '.["$id"], .title'
"$KVTOOL" schema inspect/1 || echo $?
"$KVTOOL" schema --json-version 1 inspect || echo $?
"$KVTOOL" schema gate-config/2 || echo $?
"$KVTOOL" schema inspect/3 || echo $?
"$KVTOOL" schema --output-dir schemas && "$KVTOOL" schema inspect | cmp - schemas/inspect.schema.json && echo "the same in files"
[ "$(ls schemas | wc -l)" = "$("$KVTOOL" schema | wc -l)" ] && echo "a file each"
"$KVTOOL" schema --output-dir schemas 2> /dev/null || echo "not twice: $?"
"$KVTOOL" schema --output-dir schemas -f && echo "with -f"
"$KVTOOL" schema inspect --output-dir schemas || echo $?
