# Many inputs end with a summary, and a wrong input creates no store.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
cp "$state" a.bin; "$KVTOOL" convert -q "$state" --to llama-state --tokens 0:100 -o b.bin
head -c 1000 "$state" > cut.bin; mkdir -p slots; echo "to do" > notes.txt
says() { sed 's/: [0-9.]* KiB to .*/: added/; s/, xxh3.*//'; }
for wrong in cut.bin notes.txt slots absent; do
  "$KVTOOL" store add s $wrong >/dev/null 2>&1 && echo "added" || [ ! -e s ] || echo "$wrong makes a store"
done
"$KVTOOL" store add s a.bin 2>&1 | says
"$KVTOOL" store add s a.bin cut.bin b.bin absent --keep-going > said 2>&1 || echo "exit $?"; says < said
"$KVTOOL" store add s cut.bin b.bin > said 2>&1 || echo "exit $?"; says < said
# A file that is not a state does not fail a watching run; a damaged state does.
cp a.bin b.bin notes.txt slots; touch slots/empty.bin
"$KVTOOL" store watch --slots slots --store s --once --settle-ms 10 > said 2>&1 || echo "exit $?"; says < said
cp cut.bin slots
"$KVTOOL" store watch --slots slots --store s --once --settle-ms 10 > said 2>&1 || echo "exit $?"; says < said
