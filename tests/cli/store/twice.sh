# Runs that add the same saves at the same time store each once.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
mkdir slots
for n in 1 2 3; do "$KVTOOL" convert -q "$state" --to llama-state --tokens "0:$((100 * n))" -o "slots/save$n"; done
runs=()
for n in 1 2 3 4 5 6; do "$KVTOOL" store watch --slots slots --store s --once --settle-ms 10 -q & runs+=($!); done
for run in "${runs[@]}"; do wait "$run" || echo "exit $?"; done
"$KVTOOL" store list s --json | jq -c '[.results[0].states[].name] | sort'
"$KVTOOL" store verify s --json | jq -c '.results[0] | [.verdict, .states, .leftover_files]'
for n in 1 2 3; do "$KVTOOL" store get -q s "save$n" -c | cmp - "slots/save$n"; done
