"""Sums: through a calculator where one is declared, else in the head where they are small."""

from __future__ import annotations

from choice import Chooser
from talk import Talk, ToolDef
from words import invented, new_key

OPERATIONS = {
    "+": ("plus", "add"),
    "-": ("minus", "subtract"),
    "*": ("times", "multiply"),
    "/": ("divided by", "divide"),
}
_NAMES = "calculator calc calculate compute evaluate math do_math arithmetic eval_expression solve".split()
_ABOUT = (
    "[Evaluate|Evaluates|Calculate|Compute|Work out] [an arithmetic|a mathematical|a math|an] expression[|.]", "[A|Simple] calculator[|.]", "[Do|Perform] [arithmetic|calculations|sums][|.]", "Calculator for numbers", "", "Returns the result of a calculation.",
    "[Use this tool|Use it] to calculate[|.]", "[Solve|Compute] [sums|math problems][|.]",
)  # fmt: skip
_EXPRESSION = "expression expr formula input query equation calculation q text sum".split()
_LEFT = (("a", "b"), ("x", "y"), ("left", "right"), ("first", "second"), ("num1", "num2"), ("n1", "n2"), ("lhs", "rhs"), ("first_number", "second_number"), ("op1", "op2"))  # fmt: skip
_OPERATION = "operation operator op action kind function mode".split()
_SETS = (("add", "subtract", "multiply", "divide"), ("+", "-", "*", "/"), ("plus", "minus", "times", "divided_by"), ("sum", "difference", "product", "quotient"), ("addition", "subtraction", "multiplication", "division"))  # fmt: skip

_ASKED = (
    "[what is|what's|whats|how much is] {a} {op} {b}[?|]", "[calculate|compute|work out|evaluate|solve] {a} {op} {b}[.|]", "{a} {op} {b}[?|=| = ?|]", "[can you|could you|please] [calculate|compute|work out|tell me] {a} {op} {b}[?|]", "[I need|give me|tell me] {a} {op} {b}[.|]",
    "{a} {op} {b} [makes|equals|is][ what|][?|]", "what does {a} {op} {b} [make|give|equal][?|]", "how much [do|does] {a} {op} {b} [make|give][?|]", "[hey|hi|ok|so], {a} {op} {b}[?|]", "result of {a} {op} {b}[?|]", "[use|using|with] the calculator[:|,] {a} {op} {b}", "do the sum {a} {op} {b}[.|]",
    "and {a} {op} {b}[?|]", "quick question: {a} {op} {b}[?|]",
)  # fmt: skip
_WORDY = {
    "+": ("[add|sum] {a} and {b}[.|]", "[what is|calculate|give me] the sum of {a} and {b}[?|]", "[I have|there are] {a} [apples|euros|books|coins] and get {b} more, how many [are there|do I have][?|]"),
    "-": ("subtract {b} from {a}[.|]", "[what is|calculate] the difference of {a} and {b}[?|]", "[I have|there are] {a} [apples|euros|books|coins] and lose {b}, how many are left[?|]"),
    "*": ("multiply {a} [by|and|with] {b}[.|]", "[what is|calculate] the product of {a} and {b}[?|]", "{a} [boxes|bags|rows] of {b} [each|apples|eggs] make how many[?|]"),
    "/": ("divide {a} by {b}[.|]", "[share|split] {a} [among|between] {b} [people|friends|of us][.|]", "how many times does {b} go into {a}[?|]"),
}  # fmt: skip
_SAID = {
    "+": ("+", "plus", " + "),
    "-": ("-", "minus"),
    "*": ("*", "times", "x", "×", "multiplied by"),
    "/": ("/", "divided by", "over"),
}


def calculator(c: Chooser) -> ToolDef:
    """A calculator: one expression, or two numbers and an operation."""
    name = c.of(_NAMES) if c.chance(0.75) else f"{invented(c)}_{c.any(('calc', 'math'))}"
    about = c.expand(c.of(_ABOUT))
    if c.chance(0.6):
        key = c.of(_EXPRESSION) if c.chance(0.75) else new_key(c, c.of(_EXPRESSION))
        detail = {"description": c.any(("The expression", "for example 2 + 2", "An arithmetic expression"))}
        properties = {key: {"type": "string"} | (detail if c.chance(0.5) else {})}
        return ToolDef("expression", name, about, {"expression": key}, properties, (key,))
    (one, two), key = _pair(c), c.of(_OPERATION)
    number = {"type": c.any(("number", "number", "integer"))}
    properties = {one: number, two: number}
    operation = {key: {"type": "string", "enum": list(c.of(_SETS))}}
    properties = {**operation, **properties} if c.chance(0.5) else {**properties, **operation}
    return ToolDef("numbers", name, about, {"a": one, "b": two, "operation": key}, properties, tuple(properties))


def _pair(c: Chooser) -> tuple[str, str]:
    """Names of two numbers, in their order."""
    one, two = c.of(_LEFT)
    if c.chance(0.75):
        return one, two
    stem = invented(c)
    return c.any(((f"{stem}_{one}", f"{stem}_{two}"), (f"{one}_{stem}", f"{two}_{stem}"), (f"{stem}1", f"{stem}2")))


def adder(c: Chooser) -> ToolDef:
    """A tool for one operation only: add(a, b), as every tutorial has it."""
    op = c.any("+*-")
    one, two = _pair(c)
    kind = {"type": c.any(("number", "integer", "integer"))}
    name = c.any((OPERATIONS[op][1], f"{OPERATIONS[op][1]}_numbers", f"{OPERATIONS[op][1]}_two"))
    about = c.any(
        (f"{OPERATIONS[op][1].capitalize()} two numbers", "", f"{OPERATIONS[op][1].capitalize()}s two numbers.")
    )
    return ToolDef(f"only {op}", name, about, {"a": one, "b": two}, {one: kind, two: kind}, (one, two))


def _numbers(c: Chooser, op: str, most: int) -> tuple[str, str]:
    def one() -> str:
        digits = c.number(1, most)
        value = c.number(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)
        return f"{value}.{c.number(1, 9)}" if c.chance(0.06) else str(value)

    if op == "/" and c.chance(0.6):  # as most people divide: without a rest
        divisor = c.number(1, 99)
        return str(divisor * c.number(1, 10 ** min(most, 3))), str(divisor)
    return one(), one()


def _given(a: str, b: str, op: str) -> str:
    left, right = float(a), float(b)
    if op == "/" and right == 0:
        return "error: division by zero"
    value = {"+": left + right, "-": left - right, "*": left * right, "/": left / right if right else 0.0}[op]
    return f"{round(value, 2):.12g}"


def _question(c: Chooser, a: str, b: str, op: str) -> str:
    if c.chance(0.25):
        return c.asked(_WORDY[op] * 3, a=a, b=b)
    return c.asked(_ASKED, a=a, b=b, op=c.any(_SAID[op]).strip())


def sum_asked(talk: Talk) -> None:
    """A sum, by tool or by head."""
    c = talk.c
    talk.skill = "sums"
    tool = talk.tools.get("calculator")
    only = tool.kind[-1] if tool and tool.kind.startswith("only") else ""
    op = only or c.any("++-*//" if tool else "++-*")
    if tool is None:
        return _by_head(talk, op)
    a, b = _numbers(c, op, c.any((1, 2, 2, 3, 3, 4, 6)))
    talk.user(_question(c, a, b, op))
    shown = f"{a} {op} {b}"
    think = c.any((f"The user wants {shown}. I call {tool.name}.", f"{shown}: that is for {tool.name}."))
    number = lambda x: float(x) if "." in x else int(x)  # noqa: E731
    if tool.kind == "expression":
        talk.call(tool, {"expression": shown}, think)
    elif only:
        talk.call(tool, {"a": number(a), "b": number(b)}, think)
    else:
        names = tool.properties[tool.names["operation"]]["enum"]
        values = {"a": number(a), "b": number(b), "operation": names["+-*/".index(op)]}
        order = [key for name in tool.properties for key, other in tool.names.items() if other == name]
        talk.call(tool, {key: values[key] for key in order}, think)
    result = _given(a, b, op) if c.chance(0.8) else str(c.number(-999, 99999))  # what the tool says counts
    as_value = int(result) if result.lstrip("-").isdigit() else result
    talk.result(
        c.any(
            (
                result,
                result,
                {"result": as_value},
                f"{shown} = {result}",
                {"value": as_value},
                {"expression": shown, "result": as_value},
                f"The result is {result}",
                {"answer": as_value},
            )
        )
    )
    if result.startswith("error"):
        return talk.answer(
            "The calculator reports an error: division by zero.", "The tool gave an error. I pass it on."
        )
    talk.answer(f"{shown} is {result}.", f"The tool says {result}.")
    return None


def _by_head(talk: Talk, op: str) -> None:
    c = talk.c
    most = 10 if op == "*" else 20
    a, b = c.number(0, most), c.number(0, most)
    if c.chance(0.3):
        a, b = (c.number(most + 1, 10 ** c.number(2, 5)), c.number(0, 10 ** c.number(1, 5)))[:: c.any((1, -1))]
    elif op == "-" and b > a:
        a, b = b, a
    talk.user(_question(c, str(a), str(b), op))
    if max(a, b) > most:
        return talk.answer(
            "That is too much for my head. Declare a calculator tool with your request, and I will call it.",
            f"{a} {op} {b} is too large for me, and I have no calculator.",
        )
    result = _given(str(a), str(b), op)
    return talk.answer(f"{a} {op} {b} is {result}.", f"{a} {op} {b} is {result}.")
