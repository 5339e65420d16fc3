# Inputs that cannot be read are errors, not differences.
try() { "$KVTOOL" diff "$@" || echo "status $?"; }
state="$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"
cp "$state" a.bin
head -c 9000 a.bin > cut.bin
try a.bin
try a.bin missing.bin
try a.bin cut.bin
try a.bin a.bin --atol -1
try a.bin a.bin --layers 9
# Each side may need a flag that names its format.
tail -c +273 a.bin > blob.bin
try blob.bin a.bin --from llama-seq-blob --from-b auto
try a.bin blob.bin --from-b llama-seq-blob
