# On a full disk: exit 4, one line, and neither a file nor a folder remains under the final name.
"$PYTHON" "$SHARED_SUITE/make.py" a.bin 4
mkdir tree full
cp a.bin tree/
"$KVTOOL" compress -q --from opaque a.bin tree
status=0
"$KVTOOL" compress -q --from opaque a.bin -c > /dev/full 2> said || status=$?
[ $status = 4 ] && grep -q 'stdout: cannot write: No space left on device' said
status=0
unshare -rm bash -eu "$SHARED_SUITE/full-disk.bash" 2> /dev/null || status=$?
case $status in
  0) ;;
  9) exit 9 ;;
  *) echo "mounting is not permitted here ($status)"; exit 77 ;;
esac
