# Tests pipes that close early, full devices, endless streams, and files whose contents are made when read.
"$PYTHON" "$SHARED_SUITE/../archive/make.py" a.bin 4
"$KVTOOL" compress -q --from opaque a.bin
early() {
  set +o pipefail
  { "$@" 2> said; echo $? > status; } | head -c 10 > /dev/null
  set -o pipefail
  [ "$(cat status)" = 0 ] && [ ! -s said ] || { echo "$*: exit $(cat status)"; cat said; }
}
early "$KVTOOL" decompress -q -o - a.bin.kvz
early "$KVTOOL" decompress -q -o /dev/stdout a.bin.kvz
early "$KVTOOL" decompress -q -c a.bin.kvz
early "$KVTOOL" compress -q --from opaque -c a.bin
early "$KVTOOL" frame encode -q --dtype f16 a.bin -o -
early "$KVTOOL" schema h2o
early "$KVTOOL" replay-h2o --help
early "$KVTOOL" convert -q --raw f16:2LTHD:2,2,?,8,64 a.bin --to npz -o -
full() {
  status=0
  "$KVTOOL" "$@" > /dev/full 2> said || status=$?
  [ $status = 4 ] && [ "$(wc -l < said)" = 1 ] || { echo "$*: exit $status"; cat said; }
}
if [ -e /dev/full ]; then
  full --version
  full -V
  full --help
  full help
  full help compress
  full compress -h
  full compress --help
  full schema
  full schema h2o
  full explain
  full formats
  full targets --json
  full inspect a.bin.kvz
  full verify a.bin.kvz
fi
"$KVTOOL" --version >&- 2> said && exit 9 || [ $? = 4 ]
# An output does not take the number of a closed descriptor.
"$KVTOOL" compress --from opaque a.bin -o closed.kvz <&- >&- 2>&- || echo "closed: exit $?"
"$KVTOOL" verify -q closed.kvz --against a.bin
forever() { yes 2>&- || true; }
endless() {
  status=0
  timeout 60 "$@" > /dev/null 2> said || status=$?
  [ $status = 3 ] && grep -q -e '--max-bytes' said || { echo "$*: exit $status"; cat said; }
}
forever | endless "$KVTOOL" inspect --max-bytes 1MiB -
forever | endless "$KVTOOL" compress --from opaque --max-bytes 1MiB - -o zero.kvz
forever | endless "$KVTOOL" verify --max-bytes 1MiB -
forever | endless "$KVTOOL" decompress --max-bytes 1MiB - -o zero
forever | endless "$KVTOOL" convert --to npz --raw f16:2LTHD:2,2,?,8,64 --max-bytes 1MiB - -o zero
[ ! -e zero ] && [ ! -e zero.kvz ]
head -c 1000000 a.bin | "$KVTOOL" compress -q --from opaque --max-bytes 1000000 - > most.kvz
# Files in /proc report a size of 0, but have content.
if [ -r /proc/version ]; then
  "$KVTOOL" compress -q --from opaque /proc/version -o version.kvz
  "$KVTOOL" decompress -q version.kvz -o version
  cmp version /proc/version
fi
if [ -r /sys/kernel/mm/transparent_hugepage/enabled ]; then
  "$KVTOOL" compress -q --from opaque /sys/kernel/mm/transparent_hugepage/enabled -o huge.kvz
  "$KVTOOL" decompress -q huge.kvz -c | cmp - /sys/kernel/mm/transparent_hugepage/enabled
fi
# stdin is read from its current offset, not from 0
{ head -c 0 > /dev/null; "$PYTHON" -c 'import os; os.lseek(0, 1000, 0)'; "$KVTOOL" compress -q --from opaque - > rest.kvz; } < a.bin
"$KVTOOL" decompress -q -c rest.kvz | cmp - <(tail -c +1001 a.bin)
