# An input that is not a folder of states is identified, with the command that reads it.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
"$KVTOOL" compress -q "$state" -o one.kvz && mkdir kvz && cp one.kvz kvz/a.kvz && cp one.kvz kvz/b.kvz
"$KVTOOL" advise --no-progress kvz --deterministic
"$KVTOOL" store add -q some.store "$state"
"$KVTOOL" advise --no-progress some.store || echo $?
# One state counts as a folder of one; an empty, a foreign and a truncated file are each reported as such.
cp "$state" slot && : > empty && echo "some notes" > notes.txt && head -c 5000 "$state" > cut
"$KVTOOL" advise --no-progress slot --deterministic | sed -n '1,2p;$p'
for file in empty notes.txt cut; do "$KVTOOL" advise --no-progress $file || echo $?; done
# Advice that needs a trace says how to record one.
"$KVTOOL" advise --no-progress slot --max-error 5% || echo $?
