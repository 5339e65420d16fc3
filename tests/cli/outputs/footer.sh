# The footer of a page names the command that made it; a page is written even if its inputs cannot be described.
s="$TESTDATA/trace/s260k.seq0.bin"
footer() { sed -n '/<footer>/,/<\/footer>/p' "$1" | sed -e 's/<[^>]*>/ /g' -e 's/0\.[0-9]*\.[0-9]*, commit [0-9a-f]*/VERSION/' -e "s|$TESTDATA|*|g" | tr -s ' \n' ' '; echo; }
"$KVTOOL" inspect "$s" --kv-heads 4 --html-out page.html -q
footer page.html
mkfifo pipe
cat "$s" > pipe &
timeout 60 "$KVTOOL" inspect pipe --kv-heads 4 --html-out page.html -q -f || echo "exit $?"
wait
footer page.html
timeout 60 "$KVTOOL" inspect <(cat "$s") --kv-heads 4 --html-out page.html -q -f || echo "exit $?"
footer page.html | sed 's|/dev/fd/[0-9]*|/dev/fd/N|g'
cp "$s" '<b>&amp;.bin'
"$KVTOOL" inspect '<b>&amp;.bin' --kv-heads 4 --html-out page.html -q -f
grep -c '<b>' page.html || true
