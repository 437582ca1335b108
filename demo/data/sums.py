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
_NAMES = (
    "calculator calc calculate compute evaluate math do_math arithmetic eval_expression solve Calculator eval sum_up evaluate_expression run_calculation basic_math calcTool doMath computeExpression math_eval reckon work_out calculator_tool evaluateMath quick_math "
    "pocket_calculator MathSolver expr_eval crunch get_result math_expression calculate_expression solve_math compute_sum simple_calculator numbers evalMath abacus"
).split()  # fmt: skip
_STEMS = "calc math sum compute arithmetic calculator evaluate Calc Math numbers".split()
_ABOUT = (
    "[Evaluate|Evaluates|Calculate|Compute|Work out] [an arithmetic|a mathematical|a math|an] expression[|.]", "[A|Simple] calculator[|.]", "[Do|Perform] [arithmetic|calculations|sums][|.]", "Calculator for numbers", "", "Returns the result of a calculation.",
    "[Use this tool|Use it] to calculate[|.]", "[Solve|Compute] [sums|math problems][|.]", "[Add|Adds], [subtract|subtracts], [multiply|multiplies] and [divide|divides][| numbers][|.]", "[A pocket|The] calculator", "Works out [sums|a sum|numbers]", "[Does|Do] the [maths|math|arithmetic|numbers][| for you][|.]", "[Basic|Exact] arithmetic[|: + - * /|.]", "[Call|Use] [this|it] for [any sum|sums|numbers|every calculation][|.]",
    "[Compute|Computes|Find] [a result|the result|the value][| of a sum| of numbers][|.]", "[Evaluates|Takes] [sums|math] such as 2 + 2", "[Math|Maths|Calculation] [tool|helper|service]", "[Arithmetic|Calculation] with numbers", "[Apply|Applies] an operation to numbers[|.]", "[For|Handles] [calculations|arithmetic|math questions][|.]", "[Precise|Reliable|Fast] calculations[|.]", "[Never|Do not] calculate [in your head|yourself]: [use|call] this[|.]",
)  # fmt: skip
_EXPRESSION = (
    "expression expr formula input query equation calculation q text sum problem calc math statement string math_expression task value line expression_string code exp body term x expressionText"
).split()
_LEFT = (
    ("a", "b"), ("x", "y"), ("left", "right"), ("first", "second"), ("num1", "num2"), ("n1", "n2"), ("lhs", "rhs"), ("first_number", "second_number"), ("op1", "op2"), ("m", "n"), ("value1", "value2"), ("operand1", "operand2"), ("arg1", "arg2"), ("p", "q"), ("one", "two"), ("number1", "number2"), ("left_operand", "right_operand"),
    ("firstNumber", "secondNumber"), ("u", "v"), ("num_a", "num_b"), ("val1", "val2"), ("i", "j"), ("base", "other"), ("start", "amount"), ("number_one", "number_two"), ("valueA", "valueB"), ("from", "by"), ("alpha", "beta"),
)  # fmt: skip
_OPERATION = "operation operator op action kind function mode type op_type method calc what sign operation_type command opcode".split()
_SETS = (
    ("add", "subtract", "multiply", "divide"), ("+", "-", "*", "/"), ("plus", "minus", "times", "divided_by"), ("sum", "difference", "product", "quotient"), ("addition", "subtraction", "multiplication", "division"),
    ("ADD", "SUBTRACT", "MULTIPLY", "DIVIDE"), ("add", "sub", "mul", "div"), ("plus", "minus", "multiply", "divide"),
)  # fmt: skip

_ASKED = (
    "[what is|what's|whats|how much is] {a} {op} {b}[?|]", "[calculate|compute|work out|evaluate|solve] {a} {op} {b}[.|]", "{a} {op} {b}[?|=| = ?|]", "[can you|could you|please] [calculate|compute|work out|tell me] {a} {op} {b}[?|]", "[I need|give me|tell me] {a} {op} {b}[.|]",
    "{a} {op} {b} [makes|equals|is][ what|][?|]", "what does {a} {op} {b} [make|give|equal][?|]", "how much [do|does] {a} {op} {b} [make|give][?|]", "[hey|hi|ok|so], {a} {op} {b}[?|]", "result of {a} {op} {b}[?|]", "[use|using|with] the calculator[:|,] {a} {op} {b}", "do the sum {a} {op} {b}[.|]",
    "and {a} {op} {b}[?|]", "quick question: {a} {op} {b}[?|]",
)  # fmt: skip
_LONG = (
    "[what is|what's|how much is] {x}[?|]", "[calculate|compute|work out|evaluate|solve] {x}[.|]", "{x}[?|=| = ?|]", "[can you|could you|please] [calculate|compute|work out|tell me] {x}[?|]", "[and|so] {x}[?|]", "[result|value] of {x}[?|]", "[use|using|with] the calculator[:|,] {x}",
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
    """A calculator: one expression, or two numbers and an operation. Which of both, only its parameters tell."""
    name, about = _name(c), c.expand(c.of(_ABOUT))
    if c.chance(0.55):
        key = c.of(_EXPRESSION) if c.chance(0.65) else new_key(c, c.of(_EXPRESSION))
        detail = {"description": c.any(("The expression", "for example 2 + 2", "An arithmetic expression", "What to calculate", "e.g. 3 * (4 + 5)"))}  # fmt: skip
        properties = {key: {"type": "string"} | (detail if c.chance(0.4) else {})}
        return ToolDef("expression", name, about, {"expression": key}, properties, (key,))
    (one, two), key = _pair(c), c.of(_OPERATION)
    if c.chance(0.25) or key in (one, two):
        key = new_key(c, "op")
    enum = list(c.any(_SETS))
    if c.chance(0.3):
        c.random.shuffle(enum)
    properties = _numbers_of(c, one, two)
    operation = {key: {"type": "string", "enum": enum}}
    properties = {**operation, **properties} if c.chance(0.5) else {**properties, **operation}
    return ToolDef("numbers", name, about, {"a": one, "b": two, "operation": key}, properties, tuple(properties))


def _name(c: Chooser) -> str:
    """A calculator's name: one of many, or with something in it that nobody has seen."""
    if c.chance(0.65):
        return c.of(_NAMES)
    stem, word = c.any(_STEMS), invented(c)
    return c.any((f"{word}_{stem}", f"{stem}_{word}", f"{word}{stem.capitalize()}", f"mcp__{word}__{stem}"))


def _numbers_of(c: Chooser, one: str, two: str) -> dict[str, object]:
    """The declarations of two numbers."""
    kind = c.any(("number", "number", "integer"))
    if c.chance(0.75):
        return {one: {"type": kind}, two: {"type": kind}}
    first, second = c.any((("First number", "Second number"), ("Left side", "Right side"), ("A number", "A number")))
    return {one: {"type": kind, "description": first}, two: {"type": kind, "description": second}}


def _operation_name(tool: ToolDef, op: str) -> str:
    """How the tool wants `op` to be called."""
    enum = tool.properties[tool.names["operation"]]["enum"]
    [names] = [one for one in _SETS if set(one) == set(enum)]
    return names["+-*/".index(op)]


def _pair(c: Chooser) -> tuple[str, str]:
    """Names of two numbers, in their order."""
    one, two = c.of(_LEFT)
    if c.chance(0.5):
        return one, two
    stem, other = invented(c), invented(c)
    ways = [(f"{stem}_{one}", f"{stem}_{two}"), (f"{one}_{stem}", f"{two}_{stem}"), (f"{stem}1", f"{stem}2")]
    return c.any([*ways, (stem, other), (stem, other)]) if stem != other else ways[0]


def adder(c: Chooser) -> ToolDef:
    """A tool for one operation only: add(a, b), as every tutorial has it."""
    op = c.any("+*-")
    one, two = _pair(c)
    verb = OPERATIONS[op][1]
    about = c.any((f"{verb.capitalize()} two numbers", "", f"{verb.capitalize()}s two numbers.", f"{verb} numbers"))
    names = (verb, f"{verb}_numbers", f"{verb}_two", f"{verb}Numbers", f"{verb}_{invented(c)}", f"{invented(c)}_{verb}")
    return ToolDef(f"only {op}", c.any(names), about, {"a": one, "b": two}, _numbers_of(c, one, two), (one, two))


def _numbers(c: Chooser, op: str, most: int, whole: bool) -> tuple[str, str]:
    def one() -> str:
        digits = c.number(1, most)
        value = c.number(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)
        return f"{value}.{c.number(1, 9)}" if not whole and c.chance(0.06) else str(value)

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
    if tool.kind == "expression" and c.chance(0.15):
        return _long_sum(talk, tool)
    whole = any(one.get("type") == "integer" for one in tool.properties.values())
    a, b = _numbers(c, op, c.any((1, 2, 2, 3, 3, 4, 6)), whole)
    talk.user(_question(c, a, b, op))
    shown = f"{a} {op} {b}"
    think = c.any((f"The user wants {shown}. I call {tool.name}.", f"{shown}: that is for {tool.name}."))
    number = lambda x: float(x) if "." in x else int(x)  # noqa: E731
    if tool.kind == "expression":
        talk.call(tool, {"expression": shown}, think)
    elif only:
        talk.call(tool, {"a": number(a), "b": number(b)}, think)
    else:
        named = _operation_name(tool, op)
        values = {"a": number(a), "b": number(b), "operation": named}
        think = c.any(
            (f"The user wants {shown}. That is {named} for {tool.name}.", f"{shown}: {tool.name} with {named}.")
        )
        order = [key for name in tool.properties for key, other in tool.names.items() if other == name]
        talk.call(tool, {key: values[key] for key in order}, think)
    _told(talk, shown, _given(a, b, op))
    return None


def _long_sum(talk: Talk, tool: ToolDef) -> None:
    """Three numbers, with and without brackets: the expression goes to the calculator as it is."""
    c = talk.c
    x, y, z = (c.number(1, 10 ** c.number(1, 3)) for _ in range(3))
    shown, value = c.any(
        (
            (f"({x} + {y}) * {z}", (x + y) * z), (f"{x} + {y} * {z}", x + y * z), (f"{x} * {y} - {z}", x * y - z), (f"{x} + {y} + {z}", x + y + z),
            (f"({x} - {y}) * {z}", (x - y) * z), (f"{x} * ({y} + {z})", x * (y + z)), (f"{x} - {y} + {z}", x - y + z), (f"{x} * {y} * {z}", x * y * z),
        )
    )  # fmt: skip
    talk.user(c.asked(_LONG, x=shown))
    talk.call(tool, {"expression": shown}, f"{shown}: that is for {tool.name}.")
    _told(talk, shown, str(value))


def _told(talk: Talk, shown: str, computed: str) -> None:
    """What the tool says, which counts even where it is wrong, and the sentence about it."""
    c = talk.c
    result = computed if c.chance(0.8) else str(c.number(-999, 99999))
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


def _by_head(talk: Talk, op: str) -> None:
    """A small sum; often some more of them first, while training: there are hundreds to be known by heart."""
    c = talk.c
    if not c.held_out and c.chance(0.5):
        for _ in range(c.number(1, 4)):
            _one_by_head(talk, c.any("++-*"))
    _one_by_head(talk, op)


def _one_by_head(talk: Talk, op: str) -> None:
    c = talk.c
    most = 10 if op == "*" else 20
    a, b = c.number(0, most), c.number(0, most)
    if c.chance(0.3):
        beyond = c.number(most + 1, c.any((30, 100, 100, 1000, 10_000, 100_000)))
        a, b = (beyond, c.number(0, 10 ** c.number(1, 5)))[:: c.any((1, -1))]
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
