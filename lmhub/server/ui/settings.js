// What the user chose, kept in this browser; and the request fields that follow from it.

import { DEMO_TOOLS } from "./tools.js";

const STORE = "lmhub.settings";
const EMPTY = {
  model: "", system: "", temperature: "", top_p: "", top_k: "", max_tokens: "", thinking: true, json: false, tools: false,
};
const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens"];

function stored() {
  try {
    return { ...EMPTY, ...JSON.parse(localStorage.getItem(STORE) ?? "{}") };
  } catch {
    return { ...EMPTY };
  }
}

export const settings = stored();

export function change(name, value) {
  settings[name] = value;
  localStorage.setItem(STORE, JSON.stringify(settings));
}

// Ties the controls of `form` to the settings of their names.
export function bind(form) {
  for (const control of form.elements) {
    if (!(control.name in EMPTY)) continue;
    control.value = settings[control.name];
    control.addEventListener("input", () => control.validity.valid && change(control.name, control.value));
  }
}

export function reset(form) {
  for (const name of [...NUMBERS, "system"]) {
    change(name, "");
    form.elements[name].value = "";
  }
}

// The body of a chat request for `messages`. A field that was left empty is not sent: the model's own default holds.
export function request(model, messages) {
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const body = { model: model.id, messages: [...system, ...messages] };
  for (const name of NUMBERS) if (settings[name] !== "") body[name] = Number(settings[name]);
  if (model.capabilities.reasoning) body.enable_thinking = settings.thinking;
  if (settings.json) body.response_format = { type: "json_object" };
  else if (settings.tools && model.capabilities.tools) body.tools = DEMO_TOOLS.map((tool) => tool.definition);
  return body;
}
