# Keys and sections that no option has are errors, as a misspelt flag is.
printf 'level=high\n' > good.ini
printf 'levle=high\n' > misspelt.ini
printf '[compress]\nlevel=high\n' > section.ini
printf '[nothing]\nx=1\n' > nothing.ini
printf 'hello' > data
for name in good misspelt section nothing missing; do
  "$KVTOOL" compress data --from opaque --config $name.ini -o $name.kvz -q || echo "$name: exit $?"
done
ls *.kvz
