#!/usr/bin/env bash
# Runs all tests: tests/streams.sh PYTEST ARGUMENTS... Without paths among the arguments, in three processes at once on
# parts of about equal length: many tests wait for Spark, for sessions to expire, or for killed processes to start again.
# Prints the third part as it runs, then the others, and last the counts of each. Fails if any part fails.
set -uo pipefail
pytest=$1
shift
for argument in "$@"; do
    if [ -e "${argument%%::*}" ]; then exec "$pytest" "$@"; fi
done

spark="compat_tests/pipeline compat_tests/spark compat_tests/clients"
brokers="compat_tests/cluster compat_tests/security tests/crash"
logs=$(mktemp -d)
trap 'rm -rf "$logs"; kill $(jobs -p) 2>/dev/null' EXIT

# shellcheck disable=SC2086 # the lists are words
"$pytest" $spark "$@" >"$logs/spark" 2>&1 &
spark_tests=$!
# shellcheck disable=SC2086
"$pytest" $brokers "$@" >"$logs/brokers" 2>&1 &
brokers_tests=$!
failed=0
# shellcheck disable=SC2046,SC2086
"$pytest" $(printf -- "--ignore=%s " $spark $brokers) "$@" 2>&1 | tee "$logs/others" || failed=1
wait "$spark_tests" || failed=1
cat "$logs/spark"
wait "$brokers_tests" || failed=1
cat "$logs/brokers"
for part in spark brokers others; do echo "$part: $(tail -n 1 "$logs/$part")"; done
exit "$failed"
