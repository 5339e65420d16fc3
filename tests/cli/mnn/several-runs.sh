"$KVTOOL" inspect "$TESTDATA/golden/mnn/dumps"
