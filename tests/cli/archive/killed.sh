# A run that is interrupted or killed leaves nothing under the final name and does not touch the source.
"$PYTHON" "$SHARED_SUITE/make.py" a.bin 64
before=$(cksum < a.bin)
# A script's background jobs ignore SIGINT, and children would inherit that. The run is stopped once while it waits
# for an endless input, and once in the middle of its work.
for signal in INT KILL; do
  mkfifo pipe
  env --default-signal=INT "$KVTOOL" compress -q --from opaque pipe -o held.kvz &
  run=$!
  exec 9> pipe
  head -c 1000000 a.bin >&9
  kill -$signal $run
  status=0
  wait $run 2>&- || status=$?
  exec 9>&-
  echo "$signal: exit $status"
  rm pipe
  for delay in 0.02 0.1 0.2; do
    env --default-signal=INT "$KVTOOL" compress -q --from opaque -T1 a.bin -o "mid-$signal-$delay.kvz" 2>&- &
    run=$!
    sleep $delay
    kill -$signal $run 2>&- || true
    wait $run 2>&- || true
    [ ! -e "mid-$signal-$delay.kvz" ] || "$KVTOOL" verify -q "mid-$signal-$delay.kvz" --against a.bin
  done
done
ls -A | grep -v -e '^mid-' -e '^a.bin$' || true
[ "$before" = "$(cksum < a.bin)" ] && echo "source untouched"
