# -o FOLDER/ puts a command's single result into that folder under the input's name, and creates the folder if
# necessary.
mkdir in there
cp "$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin" in/a.bin
"$KVTOOL" compress in/a.bin -o new/ -q
for folder in new2/ there there/; do
  "$KVTOOL" decompress new/a.bin.kvz -o "$folder" -q -f; cmp "$folder/a.bin" in/a.bin
  "$KVTOOL" decompress new/a.bin.kvz --to npz --kv-heads 4 -o "$folder" -q -f
  "$KVTOOL" convert in/a.bin --to safetensors --kv-heads 4 -o "$folder" -q -f
done
find new2 there -type f | sort
# If -o names a folder, results are written into it.
"$KVTOOL" convert in/a.bin --to npy --kv-heads 4 -o arrays/ -q; ls arrays | wc -l
"$KVTOOL" compress in --from opaque -o in.kvz -q; "$KVTOOL" decompress in.kvz -o back/ -q; ls back
# A pipe has no name, and is read once.
cat in.kvz | "$KVTOOL" decompress - -o piped/ -q; ls piped
cat new/a.bin.kvz | "$KVTOOL" decompress - -o pipes/ -q || echo "exit $?"
cat in/a.bin | "$KVTOOL" compress - -o there/ -q || echo "exit $?"
