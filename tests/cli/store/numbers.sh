# Forged numbers are refused or ignored; they never lead to an index that cannot be read.
"$PYTHON" -c 'import sqlite3' 2>&- || { echo "$PYTHON has no sqlite3"; exit 77; }
state="$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"
"$KVTOOL" store add -q sound "$state" --name save
cp "$state" other
fresh() { rm -rf s; cp -r sound s; }
forge() { fresh; "$PYTHON" -c 'import sqlite3, sys
with sqlite3.connect("s/index.sqlite") as index:
    for statement in sys.argv[1:]: index.execute(statement)' "$@"; }
tries() {
  for verb in "add s other --name new" "gc s"; do
    "$KVTOOL" store $verb -q 2>said || echo "exit $?: $(sed -n '1s/.*damaged: //p' said)"
  done
  "$KVTOOL" store get -q s save -c 2>&1 | cmp -s - "$state" || { "$KVTOOL" store verify -q s --repair && echo "mended"; }
  "$KVTOOL" store list s >/dev/null && "$KVTOOL" store get -q s save -c | cmp - "$state"
}
for next in -5 0 9223372036854775807 -9223372036854775808 9007199254740991 9007199254740992 9007199254740990 1; do
  echo "next $next"; forge "UPDATE numbers SET next = $next"; tries
done
echo "no next"; forge "DELETE FROM numbers"; tries
echo "two"; forge "INSERT INTO numbers VALUES(7)"; tries
echo "many"; forge "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) INSERT INTO numbers SELECT i FROM n"; tries
echo "a state's"; forge "UPDATE states SET state = -1"; tries
echo "a pack's"; forge "UPDATE packs SET pack = -1" "UPDATE objects SET pack = -1"; tries
echo "an object's size"; forge "UPDATE objects SET stored = -1"; tries
echo "an object of no bytes"; forge "UPDATE objects SET stored = 0"; tries
echo "an object's pack"; cp -r sound two; "$KVTOOL" store add -q two other --from opaque --name two; "$PYTHON" -c 'import sqlite3
with sqlite3.connect("two/index.sqlite") as index: index.execute("UPDATE objects SET pack = 2")'
"$KVTOOL" store gc two 2>&1 || echo "exit $?"; "$KVTOOL" store verify -q two --repair; "$KVTOOL" store get -q two save -c | cmp - "$state"
echo "no object"; forge "DELETE FROM objects"; "$KVTOOL" store gc s 2>&1 || echo "exit $?"; "$KVTOOL" store verify -q s --repair; "$KVTOOL" store get -q s save -c | cmp - "$state"
echo "an object's offset"; forge "UPDATE objects SET offset = -1"; "$KVTOOL" store get s save -c 2>&1 >/dev/null || echo "exit $?"; "$KVTOOL" store verify -q s --repair; tries
echo "a name that is not UTF-8"; forge "UPDATE states SET name = CAST(X'FF1B5B0000' AS TEXT)"; "$KVTOOL" store list s --json -q | $VALIDATE; "$KVTOOL" store list s | tail -1 | cut -c1-20
# Only file names that the program itself would choose count.
for name in 0000000007 7 +0000007 00000000 -0000001 18446744073709551615 9007199254740991 9223372036854775808; do
  fresh; cp s/packs/00000001.pack "s/packs/$name.pack"; cp s/states/00000001.kvs "s/states/$name.kvs"
  echo "$name"; tries
done
