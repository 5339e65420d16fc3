# The completions that bash offers. Words before the cursor are split as bash splits them.
"$KVTOOL" completion bash > kvtool.bash
set +e # compgen returns 1 if nothing matches
. ./kvtool.bash
touch slot0.bin slot1.bin
complete_words() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _kvtool
  echo "$*: ${COMPREPLY[*]}"
}
complete_words kvtool comp
complete_words kvtool compress --lev
complete_words kvtool compress --level h
complete_words kvtool compress --level = d
complete_words kvtool replay-h2o --policy s
complete_words kvtool replay ''
complete_words kvtool replay evict --policy s
complete_words kvtool replay evict --sched
complete_words kvtool rep
complete_words kvtool advise --policy s
complete_words kvtool bench --sl
complete_words kvtool convert slot0.bin --to saf
complete_words kvtool inspect --from llama-s
complete_words kvtool weights ver
complete_words kvtool completion f
complete_words kvtool schema h2o
complete_words kvtool inspect slot
complete_words kvtool compress -T ''
for shell in zsh fish; do
  "$KVTOOL" completion $shell > kvtool.$shell
  # Each shell, if it is installed, checks the syntax.
  ! command -v $shell > /dev/null || $shell -n kvtool.$shell
  for word in replay-h2o evict snapkv llama-state keep-going; do grep -q "$word" kvtool.$shell || echo "$shell: no $word"; done
done
