#!/bin/sh
# redis-server for the tests that need a real one: installed where that is allowed, and never a reason to fail.
# Without it those tests are skipped, and the end of the test run says so.
command -v redis-server >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing redis-server for the tests of rows in Redis"
    # Debian would start a service of its own; the tests start theirs.
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d && ours=yes
    fi
    export DEBIAN_FRONTEND=noninteractive
    timeout 300 apt-get install -y -qq --no-install-recommends redis-server >/dev/null 2>&1 ||
        { timeout 120 apt-get update -qq && timeout 300 apt-get install -y -qq --no-install-recommends redis-server; } \
            >/dev/null 2>&1
    [ "${ours:-}" = yes ] && rm -f /usr/sbin/policy-rc.d
fi
command -v redis-server >/dev/null ||
    echo "NO redis-server, and it cannot be installed from here: tests of rows in Redis WILL BE SKIPPED" >&2
exit 0
