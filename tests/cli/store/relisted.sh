# A repair lists every state with a complete record, and names those that the index lacked because their addition was
# interrupted.
"$PYTHON" -c 'import sqlite3' 2>&- || { echo "$PYTHON has no sqlite3"; exit 77; }
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
cp "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" holes.bin
"$KVTOOL" store add -q s "$state" --name save
"$KVTOOL" store add -q s holes.bin --name save
"$KVTOOL" store verify s --repair
# The state after a killed add: the record exists, but no row names it.
"$PYTHON" -c 'import sqlite3
with sqlite3.connect("s/index.sqlite") as index: index.execute("DELETE FROM states WHERE state = 2")'
"$KVTOOL" store get -q s save -c | cmp - "$state"
"$KVTOOL" store verify s
cp -r s again
"$KVTOOL" store verify s --repair
"$KVTOOL" store get -q s save -c | cmp - holes.bin
"$KVTOOL" store verify again --repair --json | tee report.json | $VALIDATE
jq -c .results[0].relisted report.json
# If the index cannot be read, nothing shows which states it lacked.
printf x > s/index.sqlite
"$KVTOOL" store verify s --repair
