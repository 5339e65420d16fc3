"$KVTOOL" explain KV1001 | sed -n 1p
for id in $("$KVTOOL" explain | awk 'NR > 1 {print $1}'); do "$KVTOOL" explain "$id" > text; grep -q 'Exit status' text; done
for id in KV1001 kv1001 1001; do "$KVTOOL" explain $id | cksum; done | uniq | wc -l
"$KVTOOL" explain KV1 | sed -n 1p
for id in 999999 KV KVT1001 1001x ''x; do "$KVTOOL" explain "$id" > /dev/null 2>&1 || echo "$id: $?"; done
