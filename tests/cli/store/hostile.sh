# A damaged or false store is refused or repaired; wrong data is never returned.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
"$KVTOOL" convert -q "$state" --to llama-state --tokens 0:300 -o save1
"$KVTOOL" store add -q sound save1 "$state" --name x 2>/dev/null || echo "exit $?"
"$KVTOOL" store add -q sound save1 && "$KVTOOL" store add -q sound "$state" --name save2
fresh() { rm -rf s; cp -r sound s; }
refuses() { "$KVTOOL" store "$@" >/dev/null 2>err && echo "accepted: $*" || echo "exit $?: $(head -1 err | sed 's/.*: \(.*\) \[/\1 [/; s/(offset 0x[0-9a-f]*) //')"; }
refuses list nothing
mkdir other && touch other/file
refuses list other
refuses add other save1
refuses get sound nobody -o x
refuses get sound save1@2 -o x
fresh; truncate -s -100 s/packs/*1.pack; refuses get s save1 -o x; refuses verify s
fresh; printf x | dd of=s/packs/00000001.pack bs=1 seek=5000 conv=notrunc status=none; refuses get s save1 -o x; refuses verify s
"$KVTOOL" store verify s --json 2>/dev/null | jq -c '.results[0] | [.verdict, (.problems | length), [.damaged[].name]]' || true
# After the repair the object is dropped; added again, it is complete.
refuses verify s --repair
"$KVTOOL" store add -q s save1 --name again
"$KVTOOL" store verify -q s
"$KVTOOL" store get -q s save1 -c | cmp - save1
# Two packs that were swapped are detected.
fresh; mv s/packs/00000001.pack t; mv s/packs/00000002.pack s/packs/00000001.pack; mv t s/packs/00000002.pack; refuses get s save2 -o x
"$KVTOOL" store verify -q s --repair && "$KVTOOL" store get -q s save2 -c | cmp - "$state"
fresh; mv s/states/00000001.kvs s/states/00000002.kvs; refuses get s save2 -o x; refuses get s save1 -o x; refuses gc s
# The index is lost, not a database, another program's database, or truncated.
fresh; rm s/index.sqlite; refuses list s
"$KVTOOL" store verify -q s --repair && "$KVTOOL" store verify -q s && "$KVTOOL" store get -q s save2 -c | cmp - "$state"
fresh; echo "this is no database, but it is long enough to be looked at as one" >s/index.sqlite; refuses list s
fresh; "$PYTHON" -c 'import sqlite3; d = sqlite3.connect("f"); d.execute("create table states(x)"); d.commit()'; mv f s/index.sqlite; refuses list s
fresh; truncate -s 8192 s/index.sqlite; refuses verify s
"$KVTOOL" store verify -q s --repair && "$KVTOOL" store get -q s save1 -c | cmp - save1
# A state whose hash equals that of the newest one of its name, which 64 bits cannot rule out, is still stored.
fresh; cp save1 twin; printf x | dd of=twin bs=1 seek=9000 conv=notrunc status=none
hash=$("$KVTOOL" store add -q hashes twin --json | jq -r '[.. | .xxh3? | strings][0]')
"$PYTHON" - "$hash" <<'END'
import sqlite3, sys
value = int(sys.argv[1], 16)
index = sqlite3.connect("s/index.sqlite")
assert index.execute("update states set hash = ? where name = 'save1'", (value - (value >> 63 << 64),)).rowcount == 1
index.commit()
END
"$KVTOOL" store add -q s twin --name save1 && "$KVTOOL" store get -q s save1 -c | cmp - twin && echo "hashes that agree are not enough"
fresh; echo "kvtool store 2" >s/kvtool-store; refuses list s
# No option can overwrite a file of the store.
fresh; for into in s/index.sqlite s/packs/00000001.pack s; do refuses get s save1 -o $into -f; done
for verb in list stats verify gc; do refuses $verb s --json-out s/index.sqlite -f; done
refuses prune s --keep-last 9 --json-out s/index.sqlite -f
refuses add s save1 --json-out s/index.sqlite -f
"$KVTOOL" store verify -q s
test ! -e x
