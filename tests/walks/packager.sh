# SPDX-License-Identifier: Apache-2.0
# A packager has installed kvtool, and checks that every file is where systems look for it.
follow docs/install.md 'kvtool --version'
said 'kvtool '
# A Debian package has the licence in a file named copyright.
[ -s "$DOCS/LICENSE" ] || [ -s "$DOCS/copyright" ] || fail "no licence"
[ -s "$DOCS/CHANGELOG.md" ] || [ -s "$DOCS/changelog.gz" ] || fail "no changelog"

# The links in all pages lead to installed files.
python3 "$TESTS/../../scripts/check/links.py" "$DOCS" || fail "links lead nowhere"

# The libraries inside, with versions and licence texts: the installed list is the one that the program prints.
[ -s "$DOCS/copyright" ] || fail "no list of the libraries' licences"
follow docs/install.md 'kvtool --version --licenses'
for part in OpenBLAS Highway fmt nlohmann/json CLI11 Zstandard xxHash SQLite zlib; do said "Comment: $part "; done
[[ "$SAID" == *"$(cat "$DOCS/copyright")"* ]] || fail "the program prints another list than $DOCS/copyright"

# A manual page for every command in the help, equal to what the program prints.
for command in $(kvtool -h | sed -n 's/^  \([a-z][a-z0-9-]*\)  .*/\1/p'); do
  written=$(ls "$PREFIX/share/man/man1/kvtool-$command".1* 2>/dev/null) || fail "no manual page of $command"
  cmp <(zcat -f "$written") <(kvtool man "$command") || fail "the manual page of $command is another program's"
done
shows docs/install.md 'man kvtool-compress'
if command -v man >/dev/null && SAID=$(MANPATH=$PREFIX/share/man MANPAGER=cat man kvtool-compress 2>&1); then said 'level'; fi

# Shell completions are installed, and `kvtool completion` prints the same.
for shell in bash zsh fish; do
  case $shell in
    bash) places=(bash-completion/completions/kvtool completions/kvtool.bash) ;;
    zsh) places=(zsh/vendor-completions/_kvtool completions/kvtool.zsh) ;;
    fish) places=(fish/vendor_completions.d/kvtool.fish completions/kvtool.fish) ;;
  esac
  shows docs/install.md 'kvtool completion bash'
  for place in "${places[@]}"; do
    [ ! -e "$PREFIX/share/$place" ] || break
  done
  cmp "$PREFIX/share/$place" <(kvtool completion $shell) || fail "the completion of $shell is another program's"
done
completes() { # WORD...: sets COMPREPLY to the completions after these words
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE} COMPREPLY=()
  "$(complete -p kvtool | sed 's/.*-F \([^ ]*\) .*/\1/')" kvtool "${*: -1}" "${COMP_WORDS[COMP_CWORD - 1]}" || true
  SAID="${COMPREPLY[*]}"
}
source <(kvtool completion bash)
completes kvtool comp
said compress
completes kvtool compress --level ''
said high
completes kvtool convert --to ''
said safetensors

follow docs/install.md 'kvtool compress --from opaque page.bin -o page.kvz' 's|page.bin|model.gguf|'
follow docs/install.md 'kvtool verify page.kvz --against page.bin' 's|page.bin|model.gguf|'
said 'identical'
