head -c 100 /dev/zero > data.bin
for spec in f16 f17:TC:1,1 f16:TX:1,1 f16:TC:1 f16:TC:1,x f16:TC:?,? f16:TC:?,7 f16:TC:2,7; do
  "$KVTOOL" inspect data.bin --raw "$spec" || echo "exit $?"
done
"$KVTOOL" inspect data.bin --from raw || echo "exit $?"
"$KVTOOL" inspect data.bin || echo "exit $?"
