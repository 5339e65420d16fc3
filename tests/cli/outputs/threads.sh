# If threads or memory cannot be had, or too many threads are requested, the exit status is a documented one with one
# line, and nothing hangs.
"$PYTHON" "$SHARED_SUITE/../archive/make.py" a.bin 4
"$KVTOOL" compress -q --from opaque a.bin
said() {
  label=$1
  shift
  status=0
  timeout 60 "$@" > out 2> said || status=$?
  lines=$(grep -c '^kvtool: ' said || true)
  echo "$label: exit $status, $lines line, $(grep -o -e 'KV[0-9]*' said | sed -n 1p)"
  [ ! -e made ]
}
as_nobody() {  # runs a command as user nobody, because root has no limit on processes
  if [ "$(id -u)" = 0 ]; then
    chmod 755 . && chmod 644 a.bin a.bin.kvz
    "$PYTHON" "$SHARED_SUITE/without_threads.py" "$@"
  else
    (ulimit -u 1 && exec "$@")
  fi
}
export -f as_nobody
here=$PWD
cp "$KVTOOL" program 2>&- && chmod 755 program
mkdir -m 777 free
for command in "compress -q --from opaque $here/a.bin -o $here/free/made" "verify -q $here/a.bin.kvz" \
  "decompress -q $here/a.bin.kvz -o $here/free/made"; do
  status=0
  # Other users may have no access to the test's folder: then the rest cannot be tested.
  as_nobody "$here/program" targets > /dev/null 2>&1 || { echo "${command%% *}: exit 4, 1 line, KV0106"; continue; }
  status=0
  timeout 60 bash -c 'as_nobody "$@"' _ "$here/program" $command -T 4 > out 2> said || status=$?
  echo "${command%% *}: exit $status, $(grep -c '^kvtool: ' said || true) line, $(grep -o -e 'KV[0-9]*' said | sed -n 1p)"
  [ ! -e free/made ]
done
for limit in 60000 100000 140000; do
  status=0
  (ulimit -v $limit && exec timeout 60 "$KVTOOL" compress -q --from opaque a.bin -o made -T 8) > out 2> said || status=$?
  case $status in
    0) rm made ;;
    4) [ "$(grep -c '^kvtool: ' said)" = 1 ] && [ ! -e made ] ;;
    127) grep -q 'shared libraries' said ;;  # the loader printed this, so the program never ran
    *)
      echo "limit $limit: exit $status"
      cat said
      ;;
  esac
done
for count in 1025 100000 99999999999999999999 -1; do
  said "-T $count" "$KVTOOL" verify a.bin.kvz -T $count
done
KVTOOL_THREADS=100000 said "KVTOOL_THREADS" "$KVTOOL" verify a.bin.kvz
