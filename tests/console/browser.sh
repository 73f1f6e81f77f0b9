#!/bin/sh
# Installs Debian's chromium and its driver where they are missing, if this may: as root, with apt-get. Fails silently
# otherwise: the tests that need a browser are then skipped by name, and fail where CI=true.
command -v chromium >/dev/null && command -v chromedriver >/dev/null && exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0
echo "installing chromium for the console's tests ..."
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver; } >/dev/null 2>&1 || exit 0
