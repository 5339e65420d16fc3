"$KVTOOL" explain KV1001 | head -1
for id in $("$KVTOOL" explain | awk 'NR > 1 {print $1}'); do "$KVTOOL" explain "$id" > text; grep -q 'Exit status' text; done
