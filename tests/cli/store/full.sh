# On a completely full disk, a failed add leaves nothing, and prune, gc and repair have reserved space.
cp "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" a.bin
cp "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" b.bin
status=0
unshare -rm bash -eu "$SHARED_SUITE/full.bash" 2> /dev/null || status=$?
case $status in
  0) ;;
  9) exit 9 ;;
  *) echo "mounting is not permitted here ($status)"; exit 77 ;;
esac
