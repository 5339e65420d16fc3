# A full disk: exit 4, one line, nothing under the final name; a folder is not left behind either.
cat > inside.sh <<'END'
mount -t tmpfs -o size=1m none full 2> /dev/null || exit 77
full() {
  status=0
  "$@" 2> said || status=$?
  [ $status = 4 ] && [ "$(wc -l < said)" = 1 ] && grep -q 'No space left on device \[KV0103\]' said && return
  echo "$*: exit $status"
  cat said
  exit 9
}
full "$KVTOOL" compress -q --from opaque a.bin -o full/a.kvz
full "$KVTOOL" decompress -q a.bin.kvz -o full/a.bin
full "$KVTOOL" decompress -q tree.kvz -o full/tree
[ -z "$(ls -A full)" ] || exit 9
END
"$PYTHON" "$SHARED_SUITE/make.py" a.bin 4
mkdir tree full
cp a.bin tree/
"$KVTOOL" compress -q --from opaque a.bin tree
status=0
"$KVTOOL" compress -q --from opaque a.bin -c > /dev/full 2> said || status=$?
[ $status = 4 ] && grep -q 'stdout: cannot write: No space left on device' said
status=0
unshare -rm bash -eu inside.sh 2> /dev/null || status=$?
case $status in
  0) echo "nothing left" ;;
  9) exit 9 ;;
  *) echo "skipped: mounting is not permitted here ($status)" ;;
esac
