#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the gate, appends its Markdown to the job's summary, and writes the exit status to `status` for the job's last
# step, because the job may fail only after the files were uploaded.
set -euo pipefail

fail() {
  echo "::error title=kvtool gate::$1"
  exit 2
}

case $FAIL_ON in
  fail | warn | never) ;;
  *) fail "fail-on: expected fail, warn or never" ;;
esac
mkdir -p "$OUTPUT"
options=(-f -o "$OUTPUT/summary.json" --html-out "$OUTPUT/gate.html" --junit-out "$OUTPUT/junit.xml"
  --annotations github --commit "$GITHUB_SHA")
if [ -n "$BASELINE" ] && [ -e "$BASELINE" ]; then
  options+=(--baseline "$BASELINE")
elif [ -n "$BASELINE" ]; then
  echo "$BASELINE is not there: no baseline yet"
fi
if [ -n "$PINNED" ]; then options+=(--pinned "$PINNED"); fi
if [ -n "$ENGINE_LOGS" ]; then options+=(--engine-logs "$ENGINE_LOGS"); fi
while IFS= read -r argument; do
  if [ -n "$argument" ]; then options+=("$argument"); fi
done <<<"$ARGUMENTS"

messages=$RUNNER_TEMP/kvtool-gate-messages
status=0
"$PROGRAM" gate "$CONFIG" "${options[@]}" 2>"$messages" || status=$?
cat "$messages"
case $status in
  0) verdict=pass ;;
  1) verdict=fail ;;
  *) verdict=none ;;
esac
# A usage error that was found before the command ran is not annotated yet.
if [ $verdict = none ] && ! grep -q '^::error' "$messages"; then
  echo "::error title=kvtool gate%3A no verdict::kvtool exited with status $status, see its log"
fi
{
  echo "verdict=$verdict"
  echo "summary=$OUTPUT/summary.json"
} >>"$GITHUB_OUTPUT"
# A job's summary holds at most a MiB, and its first lines state what failed.
if [ -s "$OUTPUT/summary.md" ]; then head -c 900000 "$OUTPUT/summary.md" >>"$GITHUB_STEP_SUMMARY"; fi

if [ $verdict = pass ] && [ "$FAIL_ON" = warn ] && grep -q '^::warning' "$messages"; then status=1; fi
if [ $verdict = fail ] && [ "$FAIL_ON" = never ]; then status=0; fi
echo "status=$status" >>"$GITHUB_OUTPUT"
