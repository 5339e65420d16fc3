# SPDX-License-Identifier: Apache-2.0
# Functions of the walks, sourced by run.sh.
DOCS=$PREFIX/share/doc/kvtool
[ -e "$DOCS/README.md" ] || DOCS=$PREFIX
STEPS=0

fail() {
  echo "step $STEPS: $*"
  exit 1
}

# Returns true if the page contains this text, wherever its lines are broken.
shows() { # PAGE WORDS
  [ -e "$DOCS/$1" ] || fail "$1 is not installed"
  [[ "$(tr -s '\n ' '  ' <"$DOCS/$1")" == *"$2"* ]] || fail "$1 does not show: $2"
}

# Runs a command that a page of the documentation shows. SED replaces the page's file names by existing ones. The output is
# in $SAID. To expect another exit status than 0, set STATUS: STATUS=1 follow ...
follow() { # PAGE COMMAND [SED]
  local status=0
  STEPS=$((STEPS + 1))
  shows "$1" "$2"
  SAID=$(eval "$(sed "${3:-}" <<<"$2")" 2>&1) || status=$?
  [ "$status" = "${STATUS:-0}" ] || fail "status $status of: $2"$'\n'"$SAID"
}

said() { # WORDS
  [[ "$SAID" == *"$1"* ]] || fail "'$1' is not in what was printed:"$'\n'"$SAID"
}

# Checks a page that shows its pictures without a network.
page() { # FILE
  grep -q '<svg' "$1" || fail "$1 has no picture"
  ! grep -qE '(src|href)="(https?:)?//' "$1" || fail "$1 fetches something"
}
