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
