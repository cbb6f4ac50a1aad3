#!/bin/sh
# Measure a study, write the page and apply a policy: gate.sh STUDY POLICY [OPTION of sweep]...
# As root. Ends with the exit status of `labctl gate`; report/ has the page, the run and JUnit's XML.
set -eu

study=$1
policy=$2
shift 2

mkdir -p report
labctl doctor --for "$study" || echo "The host has warnings; the run's checks decide."
labctl sweep "$study" "$@"
labctl report latest --html report/index.html
labctl run export latest --redact --out report/run.tar.xz
labctl gate latest --policy "$policy" --junit report/gate.xml --markdown >report/summary.md
