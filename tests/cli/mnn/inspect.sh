cp -r "$TESTDATA/golden/mnn/dumps/case_fp16_h8_l1_fa64" run
chmod -R u+w run
rm run/layer_0/moved*
"$KVTOOL" inspect run --json | $VALIDATE
"$KVTOOL" inspect run
"$KVTOOL" inspect run --layout packed
"$KVTOOL" inspect run/layer_1 --stats | grep -c "  1  "
