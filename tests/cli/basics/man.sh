# The program and each command have a page; any complaint of groff is an error.
"$KVTOOL" man --output-dir pages
# The page of an older name refers to the command's page, both as installed and through man.
cat pages/kvtool-replay-h2o.1; rm pages/kvtool-replay-h2o.1
[ "$(ls pages | wc -l)" = "$(("$("$KVTOOL" help all | grep -c '^  [a-z]')" + 1))" ] && echo "a page each"
for page in pages/*; do
  grep -q '^\.SH NAME$' "$page" && grep -q '^\.SH EXIT STATUS$' "$page" || echo "$page: a section is missing"
  ! command -v groff > /dev/null || groff -man -ww -Tutf8 "$page" 2>&1 > /dev/null
done
"$KVTOOL" man compress | cmp - pages/kvtool-compress.1 && "$KVTOOL" man | cmp - pages/kvtool.1 && echo "the same on standard output"
"$KVTOOL" man --output-dir pages 2> /dev/null || echo "not twice: $?"
"$KVTOOL" man --output-dir pages -f && echo "with -f"
"$KVTOOL" man replay evict | cmp - pages/kvtool-replay-evict.1; "$KVTOOL" man replay-h2o | cmp - pages/kvtool-replay-evict.1; sed -n '/^.SH NAME/{n;p}' pages/kvtool-replay-evict.1 pages/kvtool-replay-quant.1
"$KVTOOL" man compres 2>&1 | sed -n 1p || :
