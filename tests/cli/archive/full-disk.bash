# Sourced by disk-full.sh where mounting is allowed. Exit status 9 means that the program misbehaved.
mount -t tmpfs -o size=1m none full 2> /dev/null || exit 77
full() {
  status=0
  "$@" 2> said || status=$?
  [ $status = 4 ] && [ "$(grep -vc ^hint: said)" = 1 ] && grep -q 'No space left on device \[KV0103\]' said && return
  echo "$*: exit $status"
  cat said
  exit 9
}
full "$KVTOOL" compress -q --from opaque a.bin -o full/a.kvz
full "$KVTOOL" decompress -q a.bin.kvz -o full/a.bin
full "$KVTOOL" decompress -q tree.kvz -o full/tree
[ -z "$(ls -A full)" ] || exit 9
