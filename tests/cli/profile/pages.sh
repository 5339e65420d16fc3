# Every command reads a page that needs a profile: with --profile, or with the profile next to it; without it the page
# is refused clearly.
cp "$TESTDATA/profiles/page.kvf" "$TESTDATA/profiles/page.f16" .
cp "$TESTDATA/profiles/s260k.kvp" model.kvp
mkdir away beside && cp page.kvf away/ && cp page.kvf model.kvp beside/
"$KVTOOL" train "$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin" -q -o foreign.kvp 2> few && mv foreign.kvp away/foreign.bin
"$KVTOOL" inspect away/page.kvf --profile model.kvp | grep -E 'profile|size'
"$KVTOOL" inspect beside/page.kvf | grep profile
"$KVTOOL" convert away/page.kvf --profile model.kvp -o page.npz
"$KVTOOL" diff beside/page.kvf page.npz | tail -1
"$KVTOOL" verify beside/page.kvf
"$KVTOOL" verify away/page.kvf --profile model.kvp --json | grep -E '"(verdict|chunks|source_bytes|lost_bytes)"'
"$KVTOOL" verify -r beside

echo "-- without it"
for command in inspect verify "convert -o none.npz" bench; do
  "$KVTOOL" $command away/page.kvf || echo "exit $?"
done
"$KVTOOL" inspect away/page.kvf --profile away/foreign.bin || echo "exit $?"
"$KVTOOL" inspect away/page.kvf --profile page.kvf || echo "exit $?"
"$KVTOOL" verify page.kvf --against page.f16 --profile model.kvp || echo "exit $?"

echo "-- what it is, and that it is compressed"
"$KVTOOL" doctor beside/page.kvf
"$KVTOOL" doctor away/page.kvf || echo "exit $?"
"$KVTOOL" compress beside/page.kvf -q -o page.kvz
"$KVTOOL" frame inspect page.kvf || echo "exit $?"

echo "-- profiles that nothing needs"
"$KVTOOL" inspect page.npz --profile model.kvp || echo "exit $?"
"$KVTOOL" inspect page.npz --base page.npz || echo "exit $?"
test -e none.npz && echo written
true
