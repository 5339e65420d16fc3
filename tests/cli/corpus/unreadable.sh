# An unreadable folder fails like an unreadable file: with --keep-going the others are run. A trace is not a cache.
as_user() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi; }
cp "$KVTOOL" program && chmod 755 . program
as_user ./program targets > /dev/null 2>&1 || { echo "no other user can run the program here"; exit 77; }
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
mkdir -p all/a all/shut all/z && cp "$state" all/a/one.bin && cp "$state" all/shut/two.bin && cp "$state" all/z/three.bin
chmod -R a+rX . && chmod 0 all/shut
as_user ./program inspect -q all --keep-going || echo "exit $?"
as_user ./program inspect -q -r all --keep-going || echo "exit $?"
as_user ./program inspect -q all || echo "exit $?"
as_user ./program inspect -q all/shut all/z --keep-going || echo "exit $?"
chmod 755 all/shut
# A search skips a trace in a single file, even if it contains K and V.
mkdir mixed && cp "$TESTDATA/trace/kjv3m.seq0.bin" mixed/cache.bin
"$KVTOOL" convert -q "$state" --kv-heads 4 --to npz -o mixed/cache.trace.npz
"$KVTOOL" compress -q -r mixed --output-dir out && find out -type f
