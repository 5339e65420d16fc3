# A store holds states of many formats, orders and types, folders and other files, side by side.
states="$TESTDATA/llamacpp/states"
mkdir -p folder/empty folder/deep && cp "$states"/*f16.seq0.bin folder/deep/ && echo x >folder/a && chmod +x folder/a
n=0
for input in "$states"/*.bin folder; do
  n=$((n + 1))
  "$KVTOOL" store add -q store "$input" --name "s$n" 2>/dev/null || "$KVTOOL" store add -q store "$input" --name "s$n" --from opaque
done
n=0
for input in "$states"/*.bin; do
  n=$((n + 1))
  "$KVTOOL" store get -q store "s$n" -c | cmp - "$input"
done
test "$n" -gt 5
n=$((n + 1))
"$KVTOOL" store get -q store "s$n" -o back
diff -r folder back && test -x back/a && test -d back/empty
# Only those who may read the store may read what is extracted from it.
umask 022; "$KVTOOL" store get -q store "s$n" -o closed; "$KVTOOL" store get -q store s1 -o closed.bin
chmod 755 store; "$KVTOOL" store get -q store s1 -o half.bin; chmod 755 store/packs; "$KVTOOL" store get -q store "s$n" -o open; "$KVTOOL" store get -q store s1 -o open.bin
stat -c '%a %n' closed closed/a closed.bin half.bin open open/a open.bin
"$KVTOOL" store verify -q store
for what in "list" "stats" "verify" "gc" "prune --keep-last 1" "get s1 -o one --json-out /dev/stdout -q"; do
  set -- $what
  verb=$1; shift
  [ "$verb" = get ] || set -- "$@" --json
  "$KVTOOL" store $verb store "$@" 2>/dev/null | $VALIDATE
done
"$KVTOOL" store add store "$states"/*f16.seq0.bin --json -q 2>/dev/null | $VALIDATE
echo | "$KVTOOL" store add -q store - --name nothing --from opaque
"$KVTOOL" store get -q store nothing -c | od -An -c
