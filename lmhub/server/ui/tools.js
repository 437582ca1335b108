// The page's demo tools: they run in the browser, ask nobody, and exist to show a tool call's round trip.

const CALCULATOR = {
  type: "function",
  function: {
    name: "calculator",
    description: "Evaluate an arithmetic expression with + - * / ^ % and parentheses.",
    parameters: {
      type: "object",
      properties: { expression: { type: "string", description: "For example: (3 + 4) * 12" } },
      required: ["expression"],
    },
  },
};

const WEATHER = {
  type: "function",
  function: {
    name: "weather",
    description: "Get the current weather of a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", description: "For example: Lisbon" } },
      required: ["city"],
    },
  },
};

export const DEMO_TOOLS = [
  { name: "calculator", label: "Calculator", definition: CALCULATOR, run: (given) => calculator(given) },
  { name: "weather", label: "Weather (made up)", definition: WEATHER, run: (given) => weather(given) },
];

// The result of a call as text. A call that cannot be made is answered with what is wrong, so that the model can say so.
export function runTool(name, json) {
  const tool = DEMO_TOOLS.find((one) => one.name === name);
  try {
    if (!tool) throw new Error(`there is no tool ${name} on this page`);
    return JSON.stringify(tool.run(JSON.parse(json || "{}")));
  } catch (error) {
    const message = error instanceof SyntaxError ? "the arguments are not JSON" : error.message;
    return JSON.stringify({ error: message });
  }
}

function calculator({ expression }) {
  if (typeof expression !== "string") throw new Error("expression is missing");
  const value = evaluate(expression);
  if (!Number.isFinite(value)) throw new Error("the result is not a number");
  return { result: Number(value.toPrecision(12)) };
}

// Precedence climbing over + - * / % ^, unary minus and parentheses.
function evaluate(text) {
  const tokens = text.replace(/[×·]/g, "*").replace(/[÷:]/g, "/").replace(/−/g, "-").replace(/\*\*/g, "^")
    .match(/\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+|[-+*/%^()]|\S/gi) ?? [];
  const binds = { "+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "^": 4 };
  const apply = {
    "+": (a, b) => a + b,
    "-": (a, b) => a - b,
    "*": (a, b) => a * b,
    "/": (a, b) => a / b,
    "%": (a, b) => a % b,
    "^": (a, b) => a ** b,
  };
  let at = 0;
  const operand = () => {
    const token = tokens[at++];
    if (token === "-") return -climb(3);
    if (token === "+") return climb(3);
    if (token === "(") {
      const value = climb(1);
      if (tokens[at++] !== ")") throw new Error("a parenthesis is not closed");
      return value;
    }
    if (token === undefined) throw new Error("the expression ends too early");
    if (!/^[\d.]/.test(token)) throw new Error(`${token} is not part of arithmetic`);
    return Number(token);
  };
  const climb = (least) => {
    let left = operand();
    while (binds[tokens[at]] >= least) {
      const sign = tokens[at++];
      left = apply[sign](left, climb(sign === "^" ? binds[sign] : binds[sign] + 1));
    }
    return left;
  };
  const value = climb(1);
  if (at < tokens.length) throw new Error(`${tokens[at]} is not expected there`);
  return value;
}

// The same city has the same weather every time, and it is made up.
function weather({ city }) {
  if (typeof city !== "string" || !city.trim()) throw new Error("city is missing");
  let hash = 7;
  for (const char of city.trim().toLowerCase()) hash = (hash * 31 + char.codePointAt(0)) % 9973;
  const skies = ["sunny", "partly cloudy", "cloudy", "light rain", "windy", "fog"];
  return { city: city.trim(), temperature_c: 4 + (hash % 25), sky: skies[hash % skies.length] };
}
