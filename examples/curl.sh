#!/bin/sh
# The server with nothing but curl: sh examples/curl.sh http://127.0.0.1:8080/v1
set -eu
base="${1:-http://127.0.0.1:8080/v1}"

echo "models:"
curl -sS --fail "$base/models" -H "authorization: Bearer ${LMHUB_API_KEY:-none}"
echo

echo "a whole reply:"
curl -sS --fail "$base/chat/completions" -H 'content-type: application/json' \
  -H "authorization: Bearer ${LMHUB_API_KEY:-none}" \
  -d '{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 20, "seed": 1}'
echo

echo "the same, token by token:"
curl -sS --fail -N "$base/chat/completions" -H 'content-type: application/json' \
  -H "authorization: Bearer ${LMHUB_API_KEY:-none}" \
  -d '{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 20, "seed": 1, "stream": true}'
