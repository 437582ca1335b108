// Vercel AI SDK: an agent with one tool, whole and streamed. Arguments: the server's URL, and the provider.
import { readFileSync } from "node:fs";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const [url, provider] = process.argv.slice(2);
const options = { name: "lmhub", baseURL: url + "/v1", apiKey: "anything" };
const models = {
  responses: () => createOpenAI(options)("local"),
  chat: () => createOpenAI(options).chat("local"),
  compatible: () => createOpenAICompatible({ ...options, includeUsage: true })("local"),
  anthropic: () => createAnthropic(options)("local"),
};

const read_note = tool({
  description: "Reads a note.",
  inputSchema: z.object({ name: z.string() }),
  execute: async ({ name }) => readFileSync(name, "utf8"),
});
const request = () => ({
  model: models[provider](),
  prompt: "What do the notes say?",
  tools: { read_note },
  stopWhen: stepCountIs(3),
  maxRetries: 0,
});

const whole = await generateText(request());
const streaming = streamText({ ...request(), onError: ({ error }) => { throw error; } });
let streamed = "";
for await (const text of streaming.textStream) streamed += text;
const steps = await streaming.steps;
const told = (all) => JSON.stringify(all.map(({ text, reasoningText, finishReason }) => [reasoningText, text, finishReason]));
if (told(whole.steps) !== told(steps)) throw new Error(`${told(whole.steps)} and ${told(steps)}`);
if (steps.map((step) => step.text).join("") !== streamed) throw new Error(streamed);
if (steps.map((step) => step.finishReason).join(" ") !== "tool-calls stop") throw new Error("finish reasons");
if (!(steps[1].usage.inputTokens > 0)) throw new Error("no usage");
console.log(steps[0].reasoningText, streamed);
