# -f replaces an empty folder, one that kvtool wrote, or a dump; no other, and never in part.
mkdir tree
echo one > tree/one
"$KVTOOL" compress -q --from opaque tree
docs() {
  mkdir "$1"
  echo letter > "$1/letter.txt"
}
docs docs
"$KVTOOL" decompress -q tree.kvz -o docs || echo "exit $?"
"$KVTOOL" decompress -q tree.kvz -o docs -f || echo "exit $?"
"$KVTOOL" decompress -q tree.kvz -o docs/ -f 2>&- || echo "exit $?"
[ "$(cat docs/letter.txt)" = letter ]
echo file > plain
"$KVTOOL" decompress -q tree.kvz -o plain -f || echo "exit $?"
[ "$(cat plain)" = file ]
mkdir empty
"$KVTOOL" decompress -q tree.kvz -o empty -f && diff -r tree empty
"$KVTOOL" decompress -q tree.kvz -o mine && echo more > mine/more
ls -A mine | tr '\n' ' ' && echo
# The mark is an extended attribute, so nothing is added to the folder; if the file system has none, no folder is
# replaced.
if "$PYTHON" -c 'import os; os.setxattr(".", "user.probe", b"1")' 2>&-; then
  "$KVTOOL" decompress -q tree.kvz -o mine -f
  ln -s mine link
  "$KVTOOL" decompress -q tree.kvz -o link -f
  [ -L link ]
else
  "$KVTOOL" decompress -q tree.kvz -o mine -f && exit 9 || [ $? = 2 ]
  rm -r mine && "$KVTOOL" decompress -q tree.kvz -o mine
fi
diff -r tree mine
# this folder was written by another program
"$PYTHON" "$SHARED_SUITE/../archive/make.py" a.bin 1
"$KVTOOL" convert -q --raw f16:2LTHD:2,2,?,8,64 a.bin --to mnn-dump -o made
cp -r made dump
cp -r made with-notes
echo note > with-notes/notes.txt
"$KVTOOL" decompress -q tree.kvz -o dump -f && diff -r tree dump
"$KVTOOL" decompress -q tree.kvz -o with-notes -f 2>&- || echo "exit $?"
[ -e with-notes/notes.txt ]
for to in mnn-dump npy; do
  "$KVTOOL" convert -q --raw f16:2LTHD:2,2,?,8,64 a.bin --to $to -o docs -f 2>&- || echo "$to: exit $?"
done
[ "$(cat docs/letter.txt)" = letter ]
ls -A | grep kvtool || true
