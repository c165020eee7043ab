#!/bin/sh
# Runs every command given, also after one that failed, and says at the end which failed: one run tells all there is to
# mend.
failed=
for command in "$@"; do
    printf '%s\n' "$command"
    sh -c "$command" || failed="$failed
  $command"
done
[ -z "$failed" ] && exit 0
printf 'FAILED:%s\n' "$failed" >&2
exit 1
