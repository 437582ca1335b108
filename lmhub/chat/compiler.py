"""Compiles chat templates so that rendering is metered and every literal of the template is marked as its own.

jinja translates a template into Python. This generator changes four things: every block of statements pays for its
nodes when it is entered, operators go through `operations`, string literals become `Traced` constants, and nothing is
evaluated while compiling, where no budget runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.ext import Extension
from jinja2.parser import Parser

from lmhub.chat.traced import written

_PAYING = (  # statements whose bodies pay for themselves
    *(nodes.For, nodes.If, nodes.With, nodes.Block, nodes.Macro),
    *(nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock),
)

_UNITS: Mapping[type[nodes.Node], int] = {
    nodes.Call: 8,
    nodes.CallBlock: 8,
    nodes.Filter: 5,
    nodes.Test: 3,
    nodes.Compare: 3,
    nodes.BinExpr: 1,
    nodes.If: 0,
    nodes.Stmt: 1,
    nodes.Getattr: 1,
    nodes.Getitem: 1,
}


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model is trained on; a prompt shows its body."""

    tags = {"generation"}  # noqa: RUF012  (as jinja declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class MeteredCodeGenerator(CodeGenerator):
    """The code generator of `template.PromptEnvironment`, whose methods and `literals` the generated code uses."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        body = list(nodes)
        self.writeline(f"environment.spend({sum(map(_size, body)) + 1})")
        super().blockvisit(body, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        if node.test is not None:
            price = nodes.Const(_size(node.test) + 2 * _UNITS[nodes.Call])
            paid = nodes.Call(nodes.EnvironmentAttribute("spend"), [price], [], None, None)
            node.test = nodes.And(paid, node.test, lineno=node.lineno).set_environment(self.environment)
        super().visit_For(node, frame)

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if isinstance(node.value, str):
            self._literal(node.value)
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self._literal(node.data)

    def _literal(self, text: str) -> None:
        literals = self.environment.literals  # type: ignore[attr-defined]
        self.write(f"environment.literals[{len(literals)}]")
        literals.append(written(text))

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:
        for child in node.nodes:
            self.writeline("yield " if frame.buffer is None else f"{frame.buffer}.append(", child)
            self._wrapped("shown", child, frame)
            if frame.buffer is not None:
                self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for child in node.nodes:
            self.visit(child, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        names = {operand.op for operand in node.ops}
        if names & {"in", "notin"}:
            if len(node.ops) > 1:
                self.fail("a chat template cannot chain `in` with another comparison", node.lineno)
            self.write("(not " if "notin" in names else "(")
            self.write("environment.contains(")
            self.visit(node.expr, frame)
            self.write(", ")
            self.visit(node.ops[0].expr, frame)
            self.write("))")
            return
        self.write("(")
        self._wrapped("weigh_deeply", node.expr, frame)
        for operand in node.ops:
            self.write(f" {operators[operand.op]} ")
            self._wrapped("weigh_deeply", operand.expr, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.cut(")
        self.visit(node.node, frame)
        self.write(", slice(")
        for bound in (node.arg.start, node.arg.stop, node.arg.step):
            if bound is None:
                self.write("None, ")
            else:
                self.visit(bound, frame)
                self.write(", ")
        self.write("))")

    def _wrapped(self, function: str, node: nodes.Node, frame: Frame) -> None:
        self.write(f"environment.{function}(")
        self.visit(node, frame)
        self.write(")")

    def _refuse(self, node: nodes.Stmt, frame: Frame) -> NoReturn:
        self.fail("a chat template can neither use other templates nor change escaping", node.lineno)

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refuse
    visit_EvalContextModifier = visit_ScopedEvalContextModifier = _refuse


def _size(node: nodes.Node) -> int:
    """The units that one run through `node` costs, without the blocks in it, which pay for themselves."""
    skipped = ("body", "else_", "elif_") if isinstance(node, _PAYING) else ()
    own = next((units for kind, units in _UNITS.items() if isinstance(node, kind)), 0)
    return own + sum(_size(child) for child in node.iter_child_nodes(exclude=skipped))
