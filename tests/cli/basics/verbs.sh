# A word that is no verb is named, with the verb that is meant, and all verbs.
for words in "store slots" "store create st" "store ls s2" "store put x" "store prun s2" "store rm s x" "store" "trace inspekt x" "weights verfy" \
  "frame" "frame foo" "plan chek p" "corpus mkae" "store --json"; do
  "$KVTOOL" $words || echo "exit $?"
done
