// The official JavaScript SDKs' own stream accumulators: a call, its result, the answer. Arguments: the server's URL, which.
import { readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [url, which] = process.argv.slice(2);
const parameters = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
const about = { name: "read_note", description: "Reads a note." };
const question = { role: "user", content: "What do the notes say?" };
const read = ({ name }) => readFileSync(name, "utf8");
const openai = new OpenAI({ baseURL: url + "/v1", apiKey: "anything", maxRetries: 0 });

async function chat() {
  const runner = openai.chat.completions.runTools({
    model: "local",
    stream: true,
    messages: [question],
    tools: [{ type: "function", function: { ...about, parameters, parse: JSON.parse, function: read } }],
  });
  return await runner.finalContent();
}

async function responses() {
  const tools = [{ type: "function", ...about, parameters, strict: false }];
  const first = await openai.responses.stream({ model: "local", input: [question], tools }).finalResponse();
  const calls = first.output.filter((item) => item.type === "function_call");
  const results = calls.map(({ call_id, arguments: text }) => ({
    type: "function_call_output",
    call_id,
    output: read(JSON.parse(text)),
  }));
  const input = [question, ...first.output, ...results];
  return (await openai.responses.stream({ model: "local", input, tools }).finalResponse()).output_text;
}

async function messages() {
  const client = new Anthropic({ baseURL: url, apiKey: "anything", maxRetries: 0 });
  const tools = [{ ...about, input_schema: parameters }];
  const ask = (history) =>
    client.messages.stream({ model: "local", max_tokens: 1000, messages: history, tools }).finalMessage();
  const first = await ask([question]);
  if (first.stop_reason !== "tool_use") throw new Error(first.stop_reason);
  const results = first.content
    .filter((block) => block.type === "tool_use")
    .map(({ id, input }) => ({ type: "tool_result", tool_use_id: id, content: read(input) }));
  const turns = [question, { role: "assistant", content: first.content }, { role: "user", content: results }];
  return (await ask(turns)).content.map((block) => block.text ?? "").join("");
}

console.log(await { chat, responses, messages }[which]());
