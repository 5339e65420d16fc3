cp -r "$TESTDATA/golden/blend/mnn_dump/run_1" run
chmod -R u+w run
"$KVTOOL" inspect run
head -c 100 run/layer_0/v_t0_6.bin > cut && mv cut run/layer_0/v_t0_6.bin
"$KVTOOL" inspect run || echo "exit $?"
rm run/layer_0/v_t0_6.bin
"$KVTOOL" inspect run || echo "exit $?"
sed -i 's|"v_file": ".*"|"v_file": "../../v.bin"|' run/layer_0/meta_t0_6.json
"$KVTOOL" inspect run || echo "exit $?"
