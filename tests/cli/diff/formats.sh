# A cache is the same whatever it is kept in; heads that only one side knows serve both.
state="$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"
cp "$state" slot.bin
for format in safetensors npz npy torch mnn-dump; do
  "$KVTOOL" convert slot.bin --kv-heads 4 --rope-pairs keep --to $format -o "slot.$format" -qq
  "$KVTOOL" diff slot.bin "slot.$format"
done
"$KVTOOL" compress slot.bin -qq
"$KVTOOL" diff slot.bin.kvz slot.safetensors
# In any number of threads, and with the parts chosen like everywhere.
"$KVTOOL" diff slot.npz slot.torch -T 3 --layers 1-2 --tokens 5:20 --kv v
