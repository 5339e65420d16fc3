# An archive coded against other caches is smaller, needs them, and names them.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
cp "$state" save2.bin
"$KVTOOL" convert -q save2.bin --to llama-state --tokens 0:400 -o save1.bin
"$KVTOOL" convert -q save2.bin --to llama-state --tokens 60: -o moved.bin
"$KVTOOL" convert -q save2.bin --to llama-state --dtype bf16 -o coarse.bin
"$KVTOOL" convert -q save2.bin --to safetensors --kv-heads 4 -o arrays.safetensors
"$KVTOOL" compress -q save2.bin -o plain.kvz
smaller() { test $((100 * $(stat -c %s "$1"))) -lt $(($2 * $(stat -c %s plain.kvz))) || echo "$1 is too large: $(stat -c %s "$1")"; }
by() { # PERCENT BASE...
  most=$1; shift
  "$KVTOOL" compress -q -f save2.bin $(printf ' --base %s' "$@") -o by.kvz
  smaller by.kvz "$most"
  "$KVTOOL" decompress -q -f by.kvz -o back.bin
  cmp back.bin save2.bin
}
by 35 save1.bin              # an earlier save of the same chat
by 12 save1.bin moved.bin    # the two references together have all rows
by 5 save2.bin               # the same
by 5 arrays.safetensors      # the same cache in another format
by 70 coarse.bin             # the same cache with rounded values
by 5 plain.kvz               # an archive of the same cache
"$KVTOOL" compress -q -f save2.bin --base coarse.bin --level max -o slow.kvz  # by learned distributions
"$KVTOOL" decompress -q -f slow.kvz -o back.bin
cmp back.bin save2.bin
"$KVTOOL" compress -q -f save2.bin --base save1.bin -o by.kvz
"$KVTOOL" inspect by.kvz | grep reference
# The archive uses two references: the equal rows of one and the similar rows of the other.
"$KVTOOL" compress -f save2.bin --base save1.bin --base coarse.bin -q -o two.kvz --deterministic --json |
  "$PYTHON" -c 'import json, sys
for base in json.load(sys.stdin)["results"][0]["bases"]: print(*base.values())'
"$KVTOOL" verify by.kvz
mkdir apart && cp by.kvz apart/
"$KVTOOL" verify apart/by.kvz || echo "exit $?"
"$KVTOOL" decompress apart/by.kvz -o x.bin || echo "exit $?"
test ! -e x.bin
"$KVTOOL" verify -q apart/by.kvz --base save1.bin
"$KVTOOL" verify -q apart/by.kvz --base save2.bin  # another file with the same rows
"$KVTOOL" decompress -q apart/by.kvz --base coarse.bin -o x.bin || echo "exit $?"
"$KVTOOL" convert -q apart/by.kvz --base save1.bin --to npz --kv-heads 4 -o a.npz
"$KVTOOL" convert -q save2.bin --to npz --kv-heads 4 -o b.npz
"$KVTOOL" diff -q a.npz b.npz
# A file in the archive's folder has the reference's name, but other rows.
cp coarse.bin apart/save1.bin
"$KVTOOL" verify apart/by.kvz || echo "exit $?"
# A chain of references: its length is shown, and a reference of a reference is looked for, too.
"$KVTOOL" compress -q coarse.bin --base by.kvz -o chain.kvz
"$KVTOOL" inspect chain.kvz | grep -o "by.kvz.*, a chain of 2" | sed 's/:.*,/:/'
"$KVTOOL" verify -q chain.kvz
rm save1.bin
"$KVTOOL" verify chain.kvz || echo "exit $?"
"$KVTOOL" compress save2.bin --base nothing.bin -o y.kvz || echo "exit $?"
