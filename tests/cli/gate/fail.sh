# A gate that must fail, and says why: case, layer, head, tokens, and the command to see it again.
cd "$TESTDATA"
"$KVTOOL" gate gate/fail.json --deterministic
