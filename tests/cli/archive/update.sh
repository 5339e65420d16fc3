# In a growing folder, --update skips inputs with a newer archive and replaces older archives.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
mkdir slots; cp "$state" slots/one; cp "$TESTDATA/trace/kjv3m.seq0.bin" slots/two
old() { touch -d 2020-01-02 "$@"; }
run() { status=0; "$KVTOOL" compress slots -o out/ --update --keep-going "$@" 2>&1 | sed -n 's/; .*//; /inputs:\|newer/p' || status=$?; echo "exit $status"; }
old slots/*
run
run
# One file is new, and one was changed since.
cp slots/two slots/three; old slots/three; cp "$TESTDATA/trace/kjv3m.seq0.bin" slots/one; touch -d 2090-01-01 slots/one
run
"$KVTOOL" verify -q out/one.kvz --against slots/one && echo "the new one"
# Equal times do not prove that the archive is newer.
touch -r out/two.kvz slots/two; run
# A dump is as new as its newest file.
mkdir dumps; "$KVTOOL" convert -q "$state" --kv-heads 4 --to mnn-dump -o dumps/old; find dumps -exec touch -d 2020-01-02 {} +
"$KVTOOL" compress -q dumps/old -o old.kvz; "$KVTOOL" compress dumps/old -o old.kvz --update
touch -d 2090-01-01 "$(find dumps/old -type f | sed -n 1p)"
"$KVTOOL" compress dumps/old -o old.kvz --update 2>&1 | grep -c identical
# Tests --update for one file, for standard input, for an output with another name, and with --results, which keeps its
# own record.
"$KVTOOL" compress slots/two -o out/two.kvz --update -q; old slots/two; "$KVTOOL" compress slots/two -o out/two.kvz --update
"$KVTOOL" compress - -o piped.kvz --update -q < "$state"; "$KVTOOL" compress - -o piped.kvz --update < "$state" 2>&1 | grep -c identical
"$KVTOOL" compress slots --results done.jsonl --update || echo "exit $?"
# A folder in place of the archive does not count as one; nor does another kind of file.
mkdir -p odd/one.kvz; "$KVTOOL" compress slots/one -o odd/one.kvz --update -q || echo "exit $?"
echo notes > notes.txt; old notes.txt; "$KVTOOL" compress slots/one -o notes.txt --update -q || echo "exit $?"; cat notes.txt
