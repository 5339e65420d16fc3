# Folder outputs: an interrupted run leaves nothing, the next run removes what a killed one left, and the old output
# is intact in every case.
mkdir tree
for i in $(seq 300); do head -c 20000 /dev/zero > tree/$i; done
"$KVTOOL" compress -q --from opaque tree
old=$(cd tree && cat * | cksum)
"$PYTHON" -c 'import os; os.setxattr(".", "user.probe", b"1")' 2>&- && rounds="0.005 0.01 0.02 0.03 0.05" || rounds=""
for signal in INT TERM HUP KILL; do
  for delay in $rounds; do
    rm -rf out
    "$KVTOOL" decompress -q tree.kvz -o out
    env --default-signal=INT "$KVTOOL" decompress -q tree.kvz -o out -f 2>&- &
    run=$!
    sleep $delay
    kill -$signal $run 2>&- || true
    status=0
    wait $run 2>&- || status=$?
    case $signal:$status in
      *:0 | INT:130 | TERM:130 | HUP:130 | KILL:137) ;;
      TERM:143 | HUP:129) ;;  # before main begins
      *) echo "$signal: exit $status" ;;
    esac
    [ "$(cd out && cat * | cksum)" = "$old" ] || echo "$signal after $delay: the old folder is gone"
    [ $signal = KILL ] || [ -z "$(ls -A | grep kvtool-)" ] || { echo "$signal after $delay left:"; ls -A; }
  done
done
# The run is stopped in the middle, while it waits for a pipe.
mkfifo pipe
for signal in INT TERM KILL; do
  env --default-signal=INT "$KVTOOL" convert -q --raw f16:2LTHD:2,2,?,8,64 pipe --to npy -o held &
  run=$!
  exec 9> pipe
  kill -$signal $run
  wait $run 2>&- || true
  exec 9>&-
  [ ! -e held ]
done
rm pipe
# The remains are gone after the next run with that output.
mkdir .out.kvtool-0123456789abcdef.tmp
echo x > .out.kvtool-0123456789abcdef.tmp/x
echo x > .file.kvtool-0123456789abcdef.tmp
rm -rf out
"$KVTOOL" decompress -q tree.kvz -o out
[ ! -e .out.kvtool-0123456789abcdef.tmp ]
echo y > file
"$KVTOOL" frame encode -q --dtype f16 tree/1 -o file -f
ls -A | grep kvtool- || true
# a folder that a running process has locked is not removed
mkdir .out.kvtool-fedcba9876543210.tmp
rm -rf out
flock .out.kvtool-fedcba9876543210.tmp "$KVTOOL" decompress -q tree.kvz -o out
ls -A | grep kvtool-
