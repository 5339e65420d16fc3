# What is no folder of states says what it is, and what reads it.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
"$KVTOOL" compress -q "$state" -o one.kvz && mkdir kvz && cp one.kvz kvz/a.kvz && cp one.kvz kvz/b.kvz
"$KVTOOL" advise kvz --deterministic
"$KVTOOL" store add -q some.store "$state"
"$KVTOOL" advise some.store || echo $?
