# Whatever the server does, the result is the right bytes or an error that says why and does not show the URL's
# secrets.
. "$SHARED_SUITE/serve.bash"
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
cp "$state" served/slot0.bin
cp "$state" served/private/slot0.bin
"$KVTOOL" compress -q "$state" -o served/slot0.kvz
right() { # QUERY
  "$KVTOOL" decompress -q -f "$url/slot0.kvz?key=hunter2&$1" -o back.bin && cmp back.bin "$state" && echo "right: $1"
  "$KVTOOL" verify -q served/slot0.kvz --against "$url/slot0.bin?key=hunter2&$1" || echo "verify: $?"
}
wrong() { # PATH AND QUERY
  status=0
  quietly_named "$KVTOOL" decompress "$url/$1" -o none.bin || status=$?
  echo "exit $status"
  test ! -e none.bin
}
right busy=3
right every_cut=2
right every_cut=1
right every_reset=2
right tag=weak
right tag=none
"$KVTOOL" decompress -q -f "$url/to/slot0.kvz?key=hunter2" -o back.bin && cmp back.bin "$state" && echo "right: redirected"
wrong "slot0.kvz?key=hunter2&change=2"
wrong "slot0.kvz?key=hunter2&forget=2"
wrong "slot0.kvz?key=hunter2&forget=2&tag=weak"
wrong "slot0.kvz?key=hunter2&forget=2&tag=none"
wrong "slot0.kvz?key=hunter2&whole=1"
wrong "slot0.kvz?key=hunter2&wrong=1"
wrong "slot0.kvz?key=hunter2&long=1"
wrong "slot0.kvz?key=hunter2&busy=1000"
wrong "none.kvz?key=hunter2"
wrong "private/slot0.kvz?key=wrong"
"$KVTOOL" inspect "$url/private/slot0.bin?key=hunter2" | sed -n 1p | sed "s#$url#URL#"
# The secret appears nowhere: not in documents, not in messages at any verbosity, not in the printed command.
"$KVTOOL" analyze -vv "$url/private/slot0.bin?key=hunter2" --json --html-out page.html > out.json 2> told
"$KVTOOL" compress -vv "$url/private/slot0.bin?key=hunter2" --json -o secret.kvz >> out.json 2>> told
"$KVTOOL" inspect "http://user:hunter2@127.0.0.1:1/slot0.bin" >> out.json 2>> told || echo "nobody there: $?"
! grep -l hunter2 out.json told page.html secret.kvz
# URLs inside files are not fetched, whether a list, a gate's config or a config of options.
: > log
printf '%s\n' slot0.bin "$url/slot0.bin?key=hunter2" > list
quietly_named "$KVTOOL" analyze --files-from list || echo "$?"
echo '{"schema": "kvtool.gate-config/1", "cases": [{"name": "a", "mode": "full", "snapshot": "'$url'/slot0.bin?key=hunter2"}]}' > gate.json
quietly_named "$KVTOOL" gate gate.json > told || echo "$?"
printf 'model="%s/slot0.bin"\n' "$url" > defaults.toml
quietly_named "$KVTOOL" inspect served/slot0.bin --config defaults.toml > told || echo "$?"
grep -o 'is a URL that.*' told | sed -n 1p
test ! -s log && echo "nothing was fetched"
# If a server asks for a very long delay, kvtool waits for a minute and says so.
quietly_named timeout 5 "$KVTOOL" inspect "$url/slot0.bin?retry_after=999999999999" || echo "$?"
# A list of URLs is a corpus, and does not show their secrets either.
printf '%s\n' "$url/private/slot0.bin?key=hunter2" "$url/slot0.bin?key=hunter2" > list
"$KVTOOL" analyze --files-from list --fetch-listed --json > corpus.json 2> told || { sed "s#$url#URL#" told; echo "$?"; }
jq -r '.results[].inputs[0].file' corpus.json | sed "s#$url#URL#"
! grep hunter2 corpus.json told
# Two URLs with the same name are told apart.
"$KVTOOL" diff -q "$url/slot0.bin?key=1" "$url/slot0.bin?key=2" && echo "equal"
