# An unknown verb is named, with the one that was probably meant and all others.
for words in "store slots" "store create st" "store ls s2" "store put x" "store prun s2" "store rm s x" "store" "trace inspekt x" "weights verfy" \
  "frame" "frame foo" "plan chek p" "corpus mkae" "store --json"; do
  "$KVTOOL" $words || echo "exit $?"
done
