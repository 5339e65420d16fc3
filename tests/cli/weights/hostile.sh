# Malicious files are refused by name and offset; nothing is run, and nothing remains.
ln -s "$TESTDATA/golden/blend/bad" bad
for file in bad/pt_* bad/pickle_*; do
  "$KVTOOL" weights inspect "$file" 2>&1 && echo "$file: read" || [ $? = 3 ] || [ $? = 5 ] || echo "$file: status $?"
done
ls
