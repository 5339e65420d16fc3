"$KVTOOL" targets --json | $VALIDATE
for name in $("$KVTOOL" schema); do "$KVTOOL" schema "$name" | jq -e --arg id "kvtool.$name/1" ".[\"\$id\"] == \$id" > /dev/null; done
