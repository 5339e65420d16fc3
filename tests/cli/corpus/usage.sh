# Options that do not go with many inputs, or with none, are refused.
$PYTHON -m corpus_files all
fails() { local status=0; "$KVTOOL" "$@" > /dev/null || status=$?; echo "$status" >&2; }
fails analyze
fails analyze -r all/other
fails analyze --files-from missing
printf 'all/pair/a.safetensors\0' > list; fails analyze --files-from list
fails analyze -r all --html-out page.html
fails compress -r all -o one.kvz
fails compress -r all -c
fails convert -r all --to npz -o one.npz
fails convert -r all --to npz
fails convert all/pair/a.safetensors --to npz -o a.npz --output-dir d
fails analyze -r all --csv-out rows.csv
fails verify all/layers all/pair --against list
fails inspect 'all/none*.bin'
# A manifest in its own folder is replaced, but no input is overwritten.
"$KVTOOL" corpus make all -o all/corpus.jsonl -q && "$KVTOOL" corpus make all -o all/corpus.jsonl -q -f
fails corpus make all -o all/pair/a.safetensors -f
fails corpus make all -o all/pair -f
# A name that is not UTF-8 cannot be written as JSON.
mkdir -p odd/in && cp all/pair/a.safetensors "odd/$(printf 'n\377')" && fails corpus make odd
mv odd/n* odd/in/plain && mv odd/in "$(printf 'odd/f\377')" && fails corpus make odd/f*
