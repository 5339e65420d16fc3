# Under an address-space limit every command ends: no library may start threads and wait for them at exit.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
trace="$TESTDATA/trace"
ulimit -v 262144
run() { status=0; "$KVTOOL" "$@" > out 2>&1 || status=$?; echo "$1 $status"; }
run --version
run formats
run inspect "$state" --kv-heads 4 --stats
run analyze "$state" --kv-heads 4 -T1
run compress "$state" -o slot.kvz -T1
run verify slot.kvz --against "$state" -T1
run decompress slot.kvz -o back -T1
run convert "$state" --kv-heads 4 --to npz -o slot.npz
run diff "$state" slot.npz --kv-heads 4
run frame decode --dtype f16 "$state" -o out.f16
