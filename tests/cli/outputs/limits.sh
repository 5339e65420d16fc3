# Tests a limit on file sizes, an ignored signal, an input that changes, and a missing configuration.
"$PYTHON" "$SHARED_SUITE/../archive/make.py" a.bin 4
"$KVTOOL" compress -q --from opaque a.bin
"$KVTOOL" compress -q --from opaque a.bin -o held.kvz
mkdir tree && cp a.bin tree && "$KVTOOL" compress -q --from opaque tree
mkdir to
for command in "compress -q --from opaque a.bin -o to/x" "decompress -q a.bin.kvz -o to/x" "decompress -q tree.kvz -o to/x" \
  "convert -q --raw f16:2LTHD:2,2,?,8,64 a.bin --to npz -o to/x"; do
  status=0
  (ulimit -f 1000 && exec "$KVTOOL" $command) 2> said || status=$?
  [ $status = 4 ] && grep -q 'File too large' said && [ -z "$(ls -A to)" ] || { echo "$command: exit $status"; cat said; ls -A to; }
done
# nohup and background jobs of scripts ignore SIGINT, and kvtool keeps ignoring it.
mkfifo pipe
for signal in INT HUP TERM; do
  "$PYTHON" - "$KVTOOL" $signal <<'END' &
import os, signal, sys
signal.signal(getattr(signal, "SIG" + sys.argv[2]), signal.SIG_IGN)
os.execv(sys.argv[1], ["kvtool", "compress", "-q", "--from", "opaque", "pipe", "-o", f"ignored-{sys.argv[2]}.kvz"])
END
  run=$!
  exec 9> pipe
  echo data >&9
  kill -$signal $run
  echo more >&9
  exec 9>&-
  wait $run
  "$KVTOOL" decompress -q -c ignored-$signal.kvz | tr '\n' ' '
done
echo
# The input is written to while it is read: exit 4, no archive.
for i in 1 2 3; do
  "$PYTHON" "$SHARED_SUITE/rewrite_input.py" $i "$KVTOOL" compress -T1 --level max -q --raw f16:2LTHD:2,2,?,8,64 a.bin
  "$PYTHON" "$SHARED_SUITE/rewrite_input.py" $i "$KVTOOL" convert -q --raw f16:2LTHD:2,2,?,8,64 a.bin --to npz
done
# The input is lengthened, then shortened, in the middle of the run.
"$PYTHON" "$SHARED_SUITE/resize_input.py" "$KVTOOL"
status=0
KVTOOL_CONFIG=nowhere.toml "$KVTOOL" targets > /dev/null 2> said || status=$?
echo "exit $status: $(cat said | sed -n 1p)"
printf 'threads=1\n' > there.toml
KVTOOL_CONFIG=there.toml "$KVTOOL" targets > /dev/null
KVTOOL_CONFIG=nowhere.toml "$KVTOOL" targets --config there.toml > /dev/null
KVTOOL_CONFIG= "$KVTOOL" targets > /dev/null
"$KVTOOL" targets --config nowhere.toml > /dev/null 2>&1 || echo "exit $?"
