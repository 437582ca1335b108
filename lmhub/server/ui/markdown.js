// Markdown to DOM nodes. Text of a model only ever becomes text nodes: nothing here parses HTML, and no string becomes
// markup. Covers what models write: paragraphs, headings, lists, quotes, tables, code, emphasis, links. An image is shown
// as a link, so that no answer can make the browser fetch anything.

const DEEPEST = 12; // nesting that is still followed; behind it text stays as it is
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +(.*)|)$/;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*).*$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const HEADING = /^ {0,3}(#{1,6})(?: +(.*?))?(?: +#+)? *$/;
const TABLE_RULE = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const SAFE_URL = /^(?:https?:|mailto:)/i;
const BARE_URL = /^https?:\/\/[^\s<>"'`]+/i;

// Shows `text` inside `container`. Blocks whose source has not changed since the last call keep their nodes, so that a
// streaming answer costs its last block only, and a selection in an earlier one survives.
export function show(container, text) {
  const parsed = blocks(text.split("\n"), 0);
  const known = container.blocks ?? [];
  let same = 0;
  while (same < known.length && same < parsed.length && known[same] === parsed[same].source) same++;
  while (container.childNodes.length > same) container.lastChild.remove();
  for (const block of parsed.slice(same)) container.append(block.build());
  container.blocks = parsed.map((block) => block.source);
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const [end, build] = block(lines, at, depth);
    found.push({ source: lines.slice(at, end).join("\n"), build });
    at = end;
  }
  return found;
}

// The block that begins at line `at`: [line behind it, function that makes its node].
function block(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  if (RULE.test(line)) return [at + 1, () => document.createElement("hr")];
  const heading = HEADING.exec(line);
  if (heading) return [at + 1, () => element(`h${Math.min(heading[1].length + 2, 6)}`, inline(heading[2] ?? "", 0))];
  if (depth < DEEPEST && /^ {0,3}>/.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) return table(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines[end])) end++;
  return [end, () => element("p", inline(lines.slice(at, end).join("\n").trim(), 0))];
}

const startsBlock = (line) =>
  FENCE.test(line) || HEADING.test(line) || RULE.test(line) || /^ {0,3}>/.test(line) || ITEM.test(line);

function fenced(lines, at, [, marks, language]) {
  const close = new RegExp(`^ {0,3}${marks[0]}{${marks.length},} *$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end++;
  const code = lines.slice(at + 1, end).join("\n");
  return [Math.min(end + 1, lines.length), () => codeBlock(code, language)];
}

export function codeBlock(code, language) {
  const copy = element("button", ["Copy"], "quiet copy");
  copy.type = "button";
  copy.setAttribute("aria-label", `Copy ${language || "code"}`);
  const head = element("div", [element("span", [language || "text"]), copy], "code-head");
  const pre = element("pre", [element("code", [code])]);
  pre.tabIndex = 0; // so that a wide one can be scrolled with the keyboard
  return element("div", [head, pre], "code");
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end++;
  const inner = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
  return [end, () => element("blockquote", blocks(inner, depth + 1).map((one) => one.build()))];
}

function list(lines, at, depth) {
  const [, indent, marker] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(marker);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    const inside = indentOf(lines[end]) > indent.length;
    const sibling = item && !inside && item[1].length === indent.length && /\d/.test(item[2]) === ordered;
    if (sibling && !RULE.test(lines[end])) items.push([item[3] ?? ""]);
    else if (!lines[end].trim()) {
      const next = lines.slice(end).find((one) => one.trim()) ?? "";
      if (indentOf(next) <= indent.length && !(ITEM.exec(next)?.[1].length === indent.length)) break;
      items.at(-1).push("");
    } else if (inside || !startsBlock(lines[end])) items.at(-1).push(lines[end]);
    else break;
    end++;
  }
  return [end, () => {
    const made = element(ordered ? "ol" : "ul", items.map((item) => listItem(item, depth)));
    if (ordered && parseInt(marker, 10) !== 1) made.start = parseInt(marker, 10);
    return made;
  }];
}

function listItem([first, ...rest], depth) {
  const cut = Math.min(...rest.filter((line) => line.trim()).map(indentOf), 99);
  const inner = blocks([first, ...rest.map((line) => line.slice(Math.min(cut, indentOf(line))))], depth + 1);
  const nodes = inner.map((one) => one.build());
  // A plain item is its text, not a paragraph in it.
  if (nodes[0]?.tagName === "P") nodes.splice(0, 1, ...nodes[0].childNodes);
  return element("li", nodes);
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) end++;
  const sides = cells(lines[at + 1]).map((rule) => (rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "right") : ""));
  const row = (line, kind) =>
    element("tr", cells(line).map((cell, n) => element(kind, inline(cell, 0), sides[n] ?? "")));
  return [end, () => {
    const head = element("thead", [row(lines[at], "th")]);
    const body = element("tbody", lines.slice(at + 2, end).map((line) => row(line, "td")));
    const wide = element("div", [element("table", [head, body])], "table");
    wide.tabIndex = 0;
    return wide;
  }];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const indentOf = (line) => line.length - line.trimStart().length;

// The nodes of a run of text. Every search for a closing mark that fails is remembered, so that a hostile text of nothing
// but opening marks costs one search for each kind of mark, not one for each of its characters.
function inline(text, depth) {
  const nodes = [];
  const missing = new Set();
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = "";
  };
  const closing = (mark, from) => {
    if (missing.has(mark)) return -1;
    const found = text.indexOf(mark, from);
    if (found < 0) missing.add(mark);
    return found;
  };
  let at = 0;
  while (at < text.length) {
    const span = depth < DEEPEST ? spanAt(text, at, closing, depth) : null;
    if (span) {
      flush();
      nodes.push(span.node);
      at = span.end;
    } else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else if (text[at] === "\n") {
      plain = plain.trimEnd();
      flush();
      nodes.push(document.createElement("br"));
      at++;
    } else plain += text[at++];
  }
  flush();
  return nodes;
}

function spanAt(text, at, closing, depth) {
  const char = text[at];
  if (char === "`") return codeSpan(text, at, closing);
  if (char === "!" && text[at + 1] === "[") return link(text, at + 1, closing, depth);
  if (char === "[") return link(text, at, closing, depth);
  if (char === "h" || char === "H") return bareUrl(text, at);
  for (const [mark, tag] of [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]]) {
    if (char !== mark[0] || !text.startsWith(mark, at)) continue;
    const start = at + mark.length;
    const inWord = mark[0] === "_" && /\w/.test(text[at - 1] ?? "");
    if (inWord || !text[start] || /\s/.test(text[start])) continue;
    const end = closing(mark, start + 1);
    if (end < 0 || /\s/.test(text[end - 1])) continue;
    if (mark[0] === "_" && /\w/.test(text[end + mark.length] ?? "")) continue;
    return { node: element(tag, inline(text.slice(start, end), depth + 1)), end: end + mark.length };
  }
  return null;
}

function codeSpan(text, at, closing) {
  const marks = /^`+/.exec(text.slice(at, at + 20))[0];
  const end = closing(marks, at + marks.length);
  if (end < 0) return null;
  return { node: element("code", [text.slice(at + marks.length, end)]), end: end + marks.length };
}

function link(text, at, closing, depth) {
  const middle = closing("](", at + 1);
  const end = middle < 0 ? -1 : closing(")", middle + 2);
  if (end < 0 || text.slice(at, middle).includes("\n\n")) return null;
  const target = text.slice(middle + 2, end).trim().split(/\s/)[0].replace(/^<|>$/g, "");
  const label = inline(text.slice(at + 1, middle), depth + 1);
  return { node: anchor(target, label), end: end + 1 };
}

function bareUrl(text, at) {
  if (/\w/.test(text[at - 1] ?? "")) return null;
  const url = BARE_URL.exec(text.slice(at, at + 2000))?.[0].replace(/[.,;:!?)\]]+$/, "");
  return url ? { node: anchor(url, [url]), end: at + url.length } : null;
}

// A link, if it leads to a page or an address; anything else (`javascript:`, `data:`) is its text alone.
function anchor(target, label) {
  if (!SAFE_URL.test(target)) return element("span", label);
  const made = element("a", label);
  made.href = target;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  return made;
}

export function element(tag, children = [], className = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}
