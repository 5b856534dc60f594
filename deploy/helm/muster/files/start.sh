#!/bin/sh
# Starts Redis with redis.conf, the password of the environment, and the arguments given here.
# The password goes through standard input: it is in no file and in no process list.
# REDIS_MAXMEMORY (such as 768mb) makes Redis refuse writes before its container's limit ends it.
set -eu
: "${REDISCLI_AUTH:?is not set: it is the password of Redis}"
exec redis-server "$(dirname "$0")/redis.conf" "$@" - <<END
requirepass $REDISCLI_AUTH
masterauth $REDISCLI_AUTH
maxmemory ${REDIS_MAXMEMORY:-0}
END
