// Talks to the server's own API: the key, errors as one sentence, and a streamed reply. Knows nothing of the page.

const KEY = "lmhub.key"; // sessionStorage: the key goes with the tab

export class ApiError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }

  get needsKey() {
    return this.status === 401;
  }

  get isLoading() {
    return this.status === 503 && /loading/i.test(this.message);
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

// Relative to the page, so that a server behind a proxy's path works as well.
async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  const body = await response.json().catch(() => null);
  const error = body?.error ?? {};
  const message = error.message ?? body?.status ?? `The server answered with status ${response.status}.`;
  return new ApiError(sentence(message), response.status, error.code ?? null);
}

// The server's errors begin in lower case, as in its log.
function sentence(text) {
  const clean = String(text).trim().replace(/^./, (first) => first.toUpperCase());
  return /[.!?]$/.test(clean) ? clean : `${clean}.`;
}

export const models = async () => (await (await ask("v1/models")).json()).data;
export const status = async () => (await ask("v1/lmhub/status")).json();

// Yields the chunks of a streamed chat completion. Aborting `signal` ends the request, and with it the generation.
export async function* chat(body, signal) {
  const options = { stream: true, stream_options: { include_usage: true }, timings_per_token: true };
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, ...options }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(sentence(chunk.error.message), 0, chunk.error.code);
    yield chunk;
  }
  throw new ApiError("The connection broke before the answer was complete.");
}

// The data of every server-sent event; comments, which keep the connection alive, are skipped.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      buffer += value;
      const frames = buffer.split("\n\n");
      buffer = frames.pop();
      for (const frame of frames) {
        const lines = frame.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection broke before the answer was complete.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
