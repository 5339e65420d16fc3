# Keys and sections that match no option are errors, like a misspelt flag.
printf 'level=high\n' > good.ini
printf 'levle=high\n' > misspelt.ini
printf '[compress]\nlevel=high\n' > section.ini
printf '[nothing]\nx=1\n' > nothing.ini
printf 'hello' > data
for name in good misspelt section nothing missing; do
  "$KVTOOL" compress data --from opaque --config $name.ini -o $name.kvz -q || echo "$name: exit $?"
done
ls *.kvz
# The file that the variable names is used in the same way, unless a flag names another.
KVTOOL_CONFIG=good.ini "$KVTOOL" compress data --from opaque -o by-variable.kvz -q --json | jq -r '.results[0] | .params.level'
KVTOOL_CONFIG=misspelt.ini "$KVTOOL" compress data --from opaque -o x.kvz -q || echo "misspelt variable: exit $?"
KVTOOL_CONFIG=misspelt.ini "$KVTOOL" compress data --from opaque --config good.ini -o by-flag.kvz -q && echo by flag
KVTOOL_CONFIG=missing.ini "$KVTOOL" compress data --from opaque -o x.kvz -q || echo "missing variable: exit $?"
KVTOOL_CONFIG=. "$KVTOOL" compress data --from opaque -o x.kvz -q || echo "folder variable: exit $?"
# An endless config is not read to its end.
(ulimit -v 1000000; KVTOOL_CONFIG=/dev/zero "$KVTOOL" targets || echo "endless variable: exit $?")
"$KVTOOL" targets --config /dev/zero || echo "endless flag: exit $?"
