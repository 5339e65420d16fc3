# The page of a gate without -o: its subtitle, and every input in its footer.
gate() { "$KVTOOL" gate "$TESTDATA/gate/pass.json" --case runtime_store --deterministic -q "$@" > text || echo "exit $?"; }
gate --html-out page.html
grep -o '<p class="sub">[^<]*' page.html | sed 's/kvtool [0-9].*/VERSION/'
sed -n '/<footer>/,/<\/footer>/p' page.html | grep -o '[^/>]*: [0-9]* bytes'
# Pictures that would lie on another output are refused before anything is written.
mkdir pictures
gate --svg-out pictures --junit-out pictures/resident-bytes-over-time.svg -o summary.json
ls pictures
ls summary.json 2> /dev/null || echo "nothing was written"
