# The page of a gate without -o has a subtitle, and every input in its footer.
gate() { "$KVTOOL" gate "$TESTDATA/gate/pass.json" --case runtime_store --deterministic -q "$@" > text || echo "exit $?"; }
gate --html-out page.html
grep -o '<p class="sub">[^<]*' page.html | sed 's/kvtool [0-9].*/VERSION/'
sed -n '/<footer>/,/<\/footer>/p' page.html | grep -o '[^/>]*: [0-9]* bytes'
# Pictures that would overwrite another output are refused before anything is written.
mkdir pictures
gate --svg-out pictures --junit-out pictures/resident-bytes-over-time.svg -o summary.json
ls pictures
ls summary.json 2> /dev/null || echo "nothing was written"
# A file to which an option and the config refer by different paths is listed once in the footer, and read once.
cp "$TESTDATA/trace/s260k.seq0.bin" slot.bin
echo '{"schema": "kvtool.gate-config/1", "cases": [{"name": "same", "snapshot": "slot.bin", "reference": "slot.bin"}]}' > same.json
"$KVTOOL" gate same.json --snapshot ./slot.bin --html-out same.html --deterministic -v > text 2> err.txt
sed -n '/<footer>/,/<\/footer>/p' same.html | grep -o 'slot.bin: [0-9]* bytes'
grep -c 'read .*slot.bin' err.txt
