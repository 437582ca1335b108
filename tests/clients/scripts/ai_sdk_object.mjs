// Vercel AI SDK: an object out of a text. Arguments: the server's URL, and the provider.
import { readFileSync } from "node:fs";
import { generateText, Output } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const [url, provider] = process.argv.slice(2);
const options = { name: "lmhub", baseURL: url + "/v1", apiKey: "anything" };
const models = {
  responses: () => createOpenAI(options)("local"),
  chat: () => createOpenAI(options).chat("local"),
  compatible: () => createOpenAICompatible({ ...options, supportsStructuredOutputs: true })("local"),
  anthropic: () => createAnthropic(options)("local"),
};

const { output } = await generateText({
  model: models[provider](),
  prompt: readFileSync("note.txt", "utf8"),
  output: Output.object({ schema: z.object({ word: z.string() }) }),
  maxRetries: 0,
});
console.log(output.word);
