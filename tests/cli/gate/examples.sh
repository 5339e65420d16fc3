# The workflows that users copy use only inputs of the action and flags of the gate that exist.
$PYTHON -c "import yaml" 2> /dev/null || { echo "python3-yaml is not installed"; exit 77; }
$PYTHON "$SHARED_SUITE/check_examples.py" "$SHARED_SUITE/../../../.github" > uses.txt
cat uses.txt
sed -n 's/.* arguments \(--[a-z-]*\).*/\1/p' uses.txt | sort -u | while read -r flag; do
  "$KVTOOL" gate --help | grep -q -- "$flag" && echo "$flag is a flag"
done
