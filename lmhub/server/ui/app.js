// Wires the page: the composer, the buttons, the dialogs and the keyboard.

import * as api from "./api.js";
import { Conversation } from "./conversation.js";
import { element } from "./markdown.js";
import * as choices from "./settings.js";
import "./status.js";
import { draw, showError, update } from "./view.js";

const EXAMPLES = [
  { text: "What is lmhub?" },
  { text: "How do I add a model family?" },
  { text: "What is 17 × 23?", tools: true },
  { text: "What is the weather in Lisbon?", tools: true },
];
const LOADING_MS = 1500; // between two questions whether the model is loaded

const find = (id) => document.getElementById(id);
const [chat, question, picker, welcome, toEnd] = ["chat", "question", "model", "welcome", "to-end"].map(find);
const conversation = new Conversation();
let models = [];
let running = null; // the AbortController of the answer that is being written
let follows = true; // the view stays at the end while an answer grows
let lastTop = 0;
const grown = new Set(); // turns that have changed since the last frame

// --- models ----------------------------------------------------------------------------------------------------------

async function loadModels() {
  try {
    models = await api.models();
  } catch (error) {
    if (error.needsKey) askForKey(loadModels);
    else if (error.isLoading) {
      picker.replaceChildren(new Option("Loading the model…"));
      setTimeout(loadModels, LOADING_MS);
    } else showError(error.message, loadModels);
    return;
  }
  showError(null);
  picker.replaceChildren(...models.map((model) => new Option(model.id)));
  picker.value = models.some((model) => model.id === choices.settings.model) ? choices.settings.model : models[0]?.id;
  picker.disabled = models.length < 1;
  adapt();
}

const model = () => models.find((one) => one.id === picker.value);

// Shows what the chosen model can do, and hides what it cannot.
function adapt() {
  const can = model()?.capabilities ?? {};
  chip("thinking").hidden = !can.reasoning;
  chip("tools").hidden = !can.tools;
  const { meta, context_length: context } = model() ?? { meta: {} };
  const facts = [model()?.display_name, meta.n_params && `${count(meta.n_params)} parameters`, meta.ftype];
  find("about-model").textContent = [...facts, context && `context of ${context} tokens`].filter(Boolean).join(" · ");
  const usable = EXAMPLES.filter((example) => !example.tools || can.tools);
  find("examples").replaceChildren(...usable.map(exampleButton));
  refresh();
}

function exampleButton({ text, tools }) {
  const button = element("button", [text], "example");
  button.type = "button";
  button.addEventListener("click", () => {
    press("tools", Boolean(tools));
    press("json", false);
    send(text);
  });
  return element("li", [button]);
}

function count(number) {
  if (number >= 1e9) return `${(number / 1e9).toPrecision(3)} B`;
  return number >= 1e6 ? `${(number / 1e6).toPrecision(3)} M` : String(number);
}

// --- answering -------------------------------------------------------------------------------------------------------

function send(text) {
  if (running || !text.trim() || !model()) return;
  conversation.say(text.trim());
  question.value = "";
  grow();
  follows = true;
  answer();
}

async function answer() {
  running = new AbortController();
  showError(null);
  announce("Answering");
  refresh();
  const chosen = model();
  try {
    await conversation.answer((messages) => choices.request(chosen, messages), running.signal, changed);
    announce("The answer is complete");
  } catch (error) {
    if (error.name === "AbortError") announce("Stopped");
    else if (error.needsKey) askForKey(answer);
    else showError(error.message, answer);
  } finally {
    running = null;
    refresh();
  }
}

// A turn has changed: draw it at the next frame, however many tokens came since the last one.
function changed(turn) {
  if (!grown.size) requestAnimationFrame(() => {
    for (const one of grown) if (conversation.turns.includes(one)) update(one);
    grown.clear();
    scroll();
  });
  grown.add(turn);
}

function stop() {
  running?.abort();
}

// Back to the last question: asked again, or put into the box to be changed.
function again(edit) {
  if (running) return;
  const at = conversation.lastQuestion;
  if (edit) {
    question.value = conversation.turns[at].content;
    conversation.cut(at);
    showError(null);
    refresh();
    grow();
    question.focus();
  } else {
    conversation.cut(at + 1);
    answer();
  }
}

// --- the view --------------------------------------------------------------------------------------------------------

function refresh() {
  draw(conversation.turns, running !== null);
  welcome.hidden = conversation.turns.length > 0 || !model();
  find("send").hidden = running !== null;
  find("stop").hidden = running === null;
  find("send").disabled = !question.value.trim() || !model();
  document.body.classList.toggle("running", running !== null);
  scroll();
}

function scroll() {
  if (follows) chat.scrollTop = chat.scrollHeight;
  toEnd.hidden = follows || conversation.turns.length === 0;
}

// Only a person scrolls up; what grows below the view must not count as that.
chat.addEventListener("scroll", () => {
  const isNearEnd = chat.scrollHeight - chat.scrollTop - chat.clientHeight < 60;
  follows = isNearEnd || (follows && chat.scrollTop >= lastTop);
  lastTop = chat.scrollTop;
  toEnd.hidden = follows;
});
new ResizeObserver(() => scroll()).observe(find("log"));
toEnd.addEventListener("click", () => {
  follows = true;
  scroll();
});

function grow() {
  question.style.height = "auto";
  question.style.height = `${Math.min(question.scrollHeight, innerHeight * 0.4)}px`;
  find("send").disabled = !question.value.trim() || !model();
}

function announce(text) {
  find("announce").textContent = text;
}

// --- controls --------------------------------------------------------------------------------------------------------

find("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send(question.value);
});
question.addEventListener("input", grow);
question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send(question.value);
  } else if (event.key === "ArrowUp" && !question.value && conversation.lastQuestion >= 0) {
    event.preventDefault();
    again(true);
  }
});
find("stop").addEventListener("click", () => {
  stop();
  question.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop();
});
find("new-chat").addEventListener("click", () => {
  stop();
  conversation.cut(0);
  showError(null);
  refresh();
  question.focus();
});
find("log").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.action === "edit") again(true);
  else if (button?.dataset.action === "regenerate") again(false);
  else if (button?.dataset.action === "copy-answer") copy(button, button.closest("article").querySelector(".text").innerText);
  else if (button?.classList.contains("copy")) copy(button, button.closest(".code").querySelector("code").textContent);
});
picker.addEventListener("change", () => {
  choices.change("model", picker.value);
  adapt();
});

async function copy(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch { // browsers keep the clipboard from pages that come over plain HTTP from elsewhere
    button.textContent = "Not allowed here";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

const chip = (name) => document.querySelector(`[data-setting=${name}]`);

function press(name, on) {
  choices.change(name, on);
  chip(name).setAttribute("aria-pressed", String(on));
}

for (const one of document.querySelectorAll(".chip")) {
  press(one.dataset.setting, choices.settings[one.dataset.setting]);
  one.addEventListener("click", () => {
    const on = one.getAttribute("aria-pressed") !== "true";
    press(one.dataset.setting, on);
    const excluded = { json: "tools", tools: "json" }[one.dataset.setting]; // an answer is the one or the other
    if (on && excluded) press(excluded, false);
  });
}

// --- dialogs and colours ---------------------------------------------------------------------------------------------

const settingsForm = document.querySelector("#settings form");
choices.bind(settingsForm);
find("open-settings").addEventListener("click", () => find("settings").showModal());
find("reset-settings").addEventListener("click", () => choices.reset(settingsForm));
find("change-key").addEventListener("click", () => {
  find("settings").close();
  askForKey(loadModels);
});

function askForKey(then) {
  const dialog = find("key-dialog");
  find("key").value = api.key.get();
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue === "use") {
      api.key.set(find("key").value.trim());
      then();
    } else if (!models.length) showError("This server wants an API key.", () => askForKey(then));
  };
  dialog.showModal();
}
find("cancel-key").addEventListener("click", () => find("key-dialog").close());

find("toggle-theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("lmhub.theme", next);
});

refresh();
loadModels();
