# A search opens each file only a few times, however deep it lies, and lists a folder only a few times, however many
# caches it holds.
count() { "$PYTHON" "$SHARED_SUITE/count_opens.py" "$@"; }
state="$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"
chain() { # COUNT FOLDER: makes a chain of nested folders
  local at="$2"
  for i in $(seq "$1"); do at="$at/d"; mkdir -p "$at"; echo one > "$at/a.txt"; echo two > "$at/b.txt"; done
  cp "$state" "$at/a.bin"
}
chain 20 short; chain 40 long
for command in inspect "compress -r"; do
  read -r few _ <<< "$(count short "$KVTOOL" $command short)"; read -r many _ <<< "$(count long "$KVTOOL" $command long)"
  [ "$many" -le $((2 * few)) ] && echo "$command: linear" || echo "$command: $few opens, of twice the depth $many"
done
# Arrays with the names of a trace, next to states.
mkdir caches
for i in $(seq 40); do cp "$TESTDATA/trace/kjv3m-L0-Q.npy" "caches/x-L$i-Q.npy"; cp "$state" "caches/state$i.bin"; done
for command in inspect doctor "doctor -r" advise; do
  read -r _ lists <<< "$(count caches "$KVTOOL" $command caches)"
  [ "$lists" -le 8 ] && echo "$command: a few lists" || echo "$command: lists the folder $lists times"
done
