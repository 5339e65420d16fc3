# Existing outputs end a run before it does any work: all of them are named, and nothing is written.
trace=$TESTDATA/trace/s260k
evict() { "$KVTOOL" replay evict "$trace.seq0.bin" --trace "$trace" --prompt-tokens 128 --budget 0.5 "$@"; }
echo mine > a.pdf && echo mine > b.csv
status=0; evict --figure-out a.pdf --csv b.csv --html-out c.html --json-out d.json --svg-out pictures || status=$?; echo $status
cat a.pdf b.csv; ls
status=0; "$KVTOOL" advise "$trace.seq0.bin" --trace "$trace" --prompt-tokens 128 --csv b.csv || status=$?; echo $status
status=0; "$KVTOOL" inspect "$trace.seq0.bin" "$trace.seq0.bin" --csv b.csv --json-out new.json || status=$?; echo $status
# Existing pictures in the folder are found before the page is written.
evict --svg-out pictures -q && mkdir -p pictures
status=0; evict --html-out c.html --svg-out pictures -q 2> /dev/null || status=$?; echo $status; ls c.html 2> /dev/null || echo "no page"
evict --figure-out a.pdf --csv b.csv --svg-out pictures -f -q && head -c 4 a.pdf && echo
# If both streams go to one file, no line is torn.
"$KVTOOL" advise "$trace.seq0.bin" --trace "$trace" --prompt-tokens 128 --max-error 10% > log 2>&1
grep -c '^[0-9] warnings$' log
grep -A1 '^  kvtool advise' log | sed "s|$TESTDATA/||g"
