// Draws the conversation. Every turn has one element, which is brought up to date as the turn changes.

import { element, show } from "./markdown.js";

const log = document.getElementById("log");
const drawn = new Map(); // turn -> what draws it

// Shows `turns`, the last of which may be growing. Elements of turns that are gone are removed.
export function draw(turns, busy) {
  for (const [turn, one] of drawn) {
    if (turns.includes(turn)) continue;
    one.root.remove();
    drawn.delete(turn);
  }
  for (const turn of turns) update(turn);
  const last = turns.findLastIndex((turn) => turn.role === "user");
  turns.forEach((turn, index) => {
    drawn.get(turn).root.classList.toggle("latest", index === last || (index > last && index === turns.length - 1));
  });
  log.setAttribute("aria-busy", String(busy)); // screen readers wait for the whole answer
}

export function update(turn) {
  if (!drawn.has(turn)) {
    const kind = turn.role === "user" ? Question : turn.role === "tool" ? Result : Answer;
    drawn.set(turn, new kind(turn));
    log.append(drawn.get(turn).root);
  }
  drawn.get(turn).update();
}

// One sentence about what went wrong, with a button to try again; `null` takes it away.
export function showError(message, retry) {
  document.getElementById("error")?.remove();
  if (message === null) return;
  const box = element("div", [element("p", [message])], "error");
  box.id = "error";
  box.setAttribute("role", "alert");
  if (retry) {
    const button = element("button", ["Retry"], "quiet");
    button.type = "button";
    button.addEventListener("click", retry);
    box.append(button);
  }
  log.after(box);
}

class Question {
  constructor(turn) {
    this.turn = turn;
    this.text = element("div", [turn.content], "bubble");
    this.root = article("user", "You", [this.text, actions(["Edit", "edit"])]);
  }

  update() {}
}

class Answer {
  constructor(turn) {
    this.turn = turn;
    this.text = element("div", [], "text");
    this.wait = element("p", ["…"], "waiting");
    this.wait.setAttribute("aria-label", "Waiting for the first token");
    this.meta = element("p", [], "meta");
    this.buttons = actions(["Copy", "copy-answer"], ["Regenerate", "regenerate"]);
    this.foot = element("div", [this.meta, this.buttons], "foot");
    this.root = article("assistant", "Answer", [this.wait, this.text, this.foot]);
    this.calls = [];
  }

  update() {
    const { turn } = this;
    const running = ["waiting", "thinking", "writing", "calling"].includes(turn._state);
    this.root.dataset.state = turn._state ?? "done";
    this.wait.hidden = turn._state !== "waiting";
    if (turn.reasoning_content) this.#reasoning();
    show(this.text, turn.content);
    turn.tool_calls?.forEach((call, index) => this.#call(call.function, index));
    this.foot.hidden = running || Boolean(turn.tool_calls);
    if (!this.foot.hidden) this.meta.textContent = about(turn);
  }

  #reasoning() {
    if (!this.thought) {
      this.summary = element("summary");
      this.thought = element("div", [], "thought");
      this.details = element("details", [this.summary, this.thought], "reasoning");
      this.text.before(this.details);
    }
    const { seconds } = this.turn._thinking ?? {};
    const ended = this.turn._state !== "thinking";
    this.summary.textContent = ended ? `Thought for ${seconds >= 0.95 ? duration(seconds) : "a moment"}` : "Thinking…";
    this.details.classList.toggle("running", !ended);
    this.thought.textContent = this.turn.reasoning_content.trim();
    if (!ended) this.thought.scrollTop = this.thought.scrollHeight;
  }

  #call(call, index) {
    if (!this.calls[index]) {
      const name = element("span", [call.name], "tool-name");
      const body = element("pre", [element("code")]);
      body.tabIndex = 0;
      this.calls[index] = body.firstChild;
      const head = element("div", [element("span", ["Calls"], "note"), name], "tool-head");
      this.foot.before(element("div", [head, body], "tool"));
    }
    this.calls[index].textContent = pretty(call.arguments);
  }
}

class Result {
  constructor(turn) {
    const body = element("pre", [element("code", [pretty(turn.content)])]);
    body.tabIndex = 0;
    const head = element("div", [element("span", ["Result"], "note")], "tool-head");
    this.root = article("tool", "Tool", [element("div", [head, body], "tool result")]);
  }

  update() {}
}

function article(kind, speaker, children) {
  const made = element("article", [element("h3", [speaker], "hidden"), ...children], `turn ${kind}`);
  return made;
}

function actions(...buttons) {
  const made = buttons.map(([label, action]) => {
    const button = element("button", [label], "quiet");
    button.type = "button";
    button.dataset.action = action;
    return button;
  });
  return element("div", made, "actions");
}

// Tokens, speed, what was cached, and why an answer ended if not by itself.
function about({ _usage: usage, _timings: timings, _finish: finish, _state: state, _seconds: seconds }) {
  const said = [];
  if (state === "stopped") said.push("Stopped");
  if (state === "failed") said.push("Broken off");
  if (finish === "length") said.push("Cut at the limit");
  if (usage) said.push(`${usage.completion_tokens} tokens`);
  if (timings?.predicted_per_second) said.push(`${rate(timings.predicted_per_second)} tokens/s`);
  if (timings?.cache_n) said.push(`${timings.cache_n} of ${usage.prompt_tokens} prompt tokens cached`);
  if (seconds !== undefined) said.push(duration(seconds));
  return said.join(" · ");
}

export function rate(value) {
  if (value >= 9999.5) return `${(value / 1000).toFixed(0)} k`;
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

function duration(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  return seconds < 99.5 ? `${seconds.toFixed(0)} s` : `${Math.round(seconds / 60)} min`;
}

// Complete JSON on one line where that is short, else with line breaks; as far as it has come where it is not complete.
function pretty(text) {
  try {
    const spread = JSON.stringify(JSON.parse(text), null, 2);
    const line = spread.replace(/\n */g, " ");
    return line.length <= 72 ? line : spread;
  } catch {
    return text;
  }
}
