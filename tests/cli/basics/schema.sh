"$KVTOOL" targets --json | $VALIDATE
"$KVTOOL" targets --json --json-version 1 | $VALIDATE
"$KVTOOL" --version --json | $VALIDATE
# A name alone is of the newest version; files have one.
for name in $("$KVTOOL" schema); do
  id=$("$KVTOOL" schema "$name" | jq -r '.["$id"]')
  [ "$("$KVTOOL" schema "$id" | jq -r '.["$id"]')" = "$id" ] || echo "$name: $id"
  [ "$("$KVTOOL" schema "$name/1" | jq -r '.["$id"]')" = "kvtool.$name/1" ] || echo "$name/1"
  [ "$("$KVTOOL" schema --json-version 1 "$name" | jq -r '.["$id"]')" = "kvtool.$name/1" ] || echo "$name by flag"
  case $id in */1) echo "$id" ;; esac
done
"$KVTOOL" schema inspect/3 || echo $?
"$KVTOOL" schema --output-dir schemas && "$KVTOOL" schema inspect | cmp - schemas/inspect.schema.json && echo "the same in files"
[ "$(ls schemas | wc -l)" = "$("$KVTOOL" schema | wc -l)" ] && echo "a file each"
"$KVTOOL" schema --output-dir schemas 2> /dev/null || echo "not twice: $?"
"$KVTOOL" schema --output-dir schemas -f --json-version 1 && "$KVTOOL" schema inspect/1 | cmp - schemas/inspect.schema.json && echo "with -f, of version 1"
"$KVTOOL" schema inspect --output-dir schemas || echo $?
