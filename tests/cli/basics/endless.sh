# An endless device is refused as an input, however it is named.
for command in inspect "compress -o a.kvz" "compress --from opaque -o a.kvz" verify "frame decode --dtype f16 -o b"; do
  "$KVTOOL" $command /dev/zero || echo "$command: exit $?"
done
"$KVTOOL" compress - -o a.kvz < /dev/zero || echo "exit $?"
"$KVTOOL" inspect --from raw --raw f16:TC:?,8 /dev/urandom || echo "exit $?"
printf 'hello' | "$KVTOOL" compress --from opaque -o pipe.kvz /dev/stdin -q && echo "a pipe ends"
"$KVTOOL" compress --from opaque -o null.kvz /dev/null -q && echo "so does /dev/null"
