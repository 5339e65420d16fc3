# A repair lists every state whose record is whole. One that the index did not name, since its adding was cut short, is said.
"$PYTHON" -c 'import sqlite3' 2>&- || { echo "$PYTHON has no sqlite3"; exit 77; }
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
cp "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" holes.bin
"$KVTOOL" store add -q s "$state" --name save
"$KVTOOL" store add -q s holes.bin --name save
"$KVTOOL" store verify s --repair
# As a killed add leaves it: the record is there, and no row names it.
"$PYTHON" -c 'import sqlite3
with sqlite3.connect("s/index.sqlite") as index: index.execute("DELETE FROM states WHERE state = 2")'
"$KVTOOL" store get -q s save -c | cmp - "$state"
"$KVTOOL" store verify s
cp -r s again
"$KVTOOL" store verify s --repair
"$KVTOOL" store get -q s save -c | cmp - holes.bin
"$KVTOOL" store verify again --repair --json | tee report.json | $VALIDATE
jq -c .results[0].relisted report.json
# Without an index that can be read nobody knows which these are.
printf x > s/index.sqlite
"$KVTOOL" store verify s --repair
