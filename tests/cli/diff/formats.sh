# A cache is equal in every format; heads that only one side states are used for both.
state="$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"
cp "$state" slot.bin
for format in safetensors npz npy torch mnn-dump; do
  "$KVTOOL" convert slot.bin --kv-heads 4 --rope-pairs keep --to $format -o "slot.$format" -qq
  "$KVTOOL" diff slot.bin "slot.$format"
done
"$KVTOOL" compress slot.bin -qq
"$KVTOOL" diff slot.bin.kvz slot.safetensors
# The result is the same for any number of threads, and parts are selected as in other commands.
"$KVTOOL" diff slot.npz slot.torch -T 3 --layers 1-2 --tokens 5:20 --kv v
