// The conversation: its messages as the API takes them, and the loop of answer, tool calls, results, answer. Knows no DOM.

import * as api from "./api.js";
import { runTool } from "./tools.js";

const STORE = "lmhub.conversation"; // sessionStorage: a reload keeps it, closing the tab forgets it
const MOST_ROUNDS = 8; // of tool calls in one turn

export class Conversation {
  constructor() {
    this.turns = restore();
  }

  // Fields with an underscore are the page's own; the API gets the others.
  get messages() {
    return this.turns.map((turn) => Object.fromEntries(Object.entries(turn).filter(([name]) => name[0] !== "_")));
  }

  get lastQuestion() {
    return this.turns.findLastIndex((turn) => turn.role === "user");
  }

  say(text) {
    this.turns.push({ role: "user", content: text });
    this.save();
  }

  // Forgets everything from turn `index` on.
  cut(index) {
    this.turns.length = index;
    this.save();
  }

  save() {
    try {
      sessionStorage.setItem(STORE, JSON.stringify(this.turns));
    } catch {
      sessionStorage.removeItem(STORE); // too long for the browser; it is still on the page
    }
  }

  // Answers the last message. `body(messages)` makes a request; `seen(turn)` is called whenever a turn has changed. An
  // abort keeps what was said so far. Raises ApiError.
  async answer(body, signal, seen) {
    try {
      for (let round = 0; round < MOST_ROUNDS; round++) {
        const turn = { role: "assistant", content: "" };
        const asked = body(this.messages);
        this.turns.push(turn);
        await this.#stream(turn, asked, signal, seen);
        if (!turn.tool_calls) return;
        for (const call of turn.tool_calls) this.#use(call, seen);
      }
    } finally {
      this.#tidy();
      this.save();
    }
  }

  async #stream(turn, body, signal, seen) {
    const begun = performance.now();
    turn._state = "waiting";
    seen(turn);
    try {
      for await (const chunk of api.chat(body, signal)) {
        absorb(turn, chunk);
        seen(turn);
      }
      turn._state = "done";
    } catch (error) {
      turn._state = error.name === "AbortError" ? "stopped" : "failed";
      throw error;
    } finally {
      turn._seconds = (performance.now() - begun) / 1000;
      if (turn._thinking) turn._thinking.seconds ??= (performance.now() - turn._thinking.begun) / 1000;
      seen(turn);
    }
  }

  #use(call, seen) {
    const result = { role: "tool", tool_call_id: call.id, content: runTool(call.function.name, call.function.arguments) };
    this.turns.push(result);
    seen(result);
  }

  // A turn that was cut short before it said anything is none, and a call that was cut short cannot be sent back.
  #tidy() {
    const last = this.turns.at(-1);
    if (last?.role !== "assistant" || last._state === "done") return;
    delete last.tool_calls;
    if (!last.content && !last.reasoning_content) this.turns.pop();
  }
}

function absorb(turn, chunk) {
  if (chunk.usage) turn._usage = chunk.usage;
  if (chunk.timings) turn._timings = chunk.timings;
  const choice = chunk.choices[0];
  if (!choice) return;
  if (choice.finish_reason) turn._finish = choice.finish_reason;
  const { content, reasoning_content: thought, tool_calls: calls } = choice.delta;
  if (thought) {
    turn._state = "thinking";
    turn._thinking ??= { begun: performance.now() };
    turn.reasoning_content = (turn.reasoning_content ?? "") + thought;
  }
  if ((content || calls) && turn._thinking) turn._thinking.seconds ??= (performance.now() - turn._thinking.begun) / 1000;
  if (content) {
    turn._state = "writing";
    turn.content += content;
  }
  for (const part of calls ?? []) {
    turn._state = "calling";
    turn.tool_calls ??= [];
    if (part.id) turn.tool_calls[part.index] = { id: part.id, type: "function", function: { name: "", arguments: "" } };
    const call = turn.tool_calls[part.index].function;
    call.name += part.function.name ?? "";
    call.arguments += part.function.arguments ?? "";
  }
}

function restore() {
  try {
    return JSON.parse(sessionStorage.getItem(STORE) ?? "[]");
  } catch {
    return [];
  }
}
