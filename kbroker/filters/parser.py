"""Parses an expression: tags (`A || B`), or conditions in a part of SQL-92, as in the selectors of JMS.

Owns the grammar, the precedence, and the checks of types that need no record. The parser is written by hand, by
precedence, and not with a parser library, for several reasons. Its messages name the expected word and the character.
Its limits apply while it reads. Its import takes milliseconds, and the broker needs no further package.

    OR < AND < NOT < comparisons, IN, BETWEEN, LIKE, IS < + - < * / < signs
"""

from __future__ import annotations

from typing import Final

from kbroker.filters.expressions import (
    Always,
    Arithmetic,
    Both,
    Compare,
    Condition,
    Either,
    Header,
    Key,
    Like,
    Literal,
    Missing,
    Number,
    Operand,
    Opposite,
    Path,
    Truth,
    Whole,
    Within,
)
from kbroker.filters.literals import date_literal, number_literal, segments
from kbroker.filters.tokens import DEEPEST, KEYWORDS, FilterError, Token, check_size, tags, tokens

TAG_HEADER: Final = "tag"
"""The header that contains a record's tag."""
_OR, _AND, _NOT, _COMPARE, _ADD, _MULTIPLY = range(1, 7)
_SIGNS: Final = {
    **dict.fromkeys(("=", "<>", "!=", "<", "<=", ">", ">="), _COMPARE),
    **dict.fromkeys(("+", "-"), _ADD),
    **dict.fromkeys(("*", "/"), _MULTIPLY),
}
_WORDS: Final = {"OR": _OR, "AND": _AND, "IN": _COMPARE, "BETWEEN": _COMPARE, "LIKE": _COMPARE, "IS": _COMPARE}
_AFTER_NOT: Final = ("IN", "BETWEEN", "LIKE")
_JOINS_TAGS: Final = "|| joins tags, which are words of letters, digits, _ and -; OR joins conditions"
_NAMES: Final = "header.NAME, key, value, value.NAME, timestamp, offset and partition"


def parse(text: str) -> Condition:
    """Parse an expression. Raises FilterError."""
    check_size(text)
    if text.strip() == "*":
        return Always(holds=True)
    tagged = tags(text)
    if tagged is not None:
        return Within(Header(TAG_HEADER, tagged[0].at), tuple(Literal(each.text, each.at) for each in tagged))
    return _Parser(tokens(text)).parsed()


class _Parser:
    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._at = 0

    def parsed(self) -> Condition:
        found = self._condition(self._expression(0, 0))
        if self._now.text == "||":
            raise self._wrong(_JOINS_TAGS)
        if self._now.kind != "end":
            raise self._wrong("AND, OR or the end is expected here")
        return found

    # -- by precedence

    def _expression(self, least: int, depth: int) -> Operand | Condition:
        """Parse as long as the precedence of operators is higher than `least`."""
        if depth > DEEPEST:
            raise self._wrong(f"an expression is nested at most {DEEPEST} deep")
        left = self._first(depth)
        while (power := self._power()) > least:
            if power in (_OR, _AND):
                left = self._joined(left, power, depth)
            elif power == _COMPARE:
                left = self._compared(left, depth)
            else:
                sign = self._next()
                left = self._calculated(sign, left, self._expression(power, depth))
        return left

    def _power(self) -> int:
        """Return the precedence of the next operator; 0 if there is no operator."""
        now = self._now
        if now.kind == "mark":
            return _SIGNS.get(now.text, 0)
        word = self._keyword()
        if word == "NOT":
            return _COMPARE if self._keyword(1) in _AFTER_NOT else 0
        return _WORDS.get(word, 0)

    def _joined(self, left: Operand | Condition, power: int, depth: int) -> Condition:
        word = "OR" if power == _OR else "AND"
        parts = [self._condition(left)]
        while self._takes(word):
            parts.append(self._condition(self._expression(power, depth)))
        return Either(tuple(parts)) if power == _OR else Both(tuple(parts))

    def _compared(self, left: Operand | Condition, depth: int) -> Condition:
        operator = self._now
        operand = self._operand(left, operator)
        if operator.kind == "mark":
            sign = "<>" if self._next().text == "!=" else operator.text
            right = self._operand(self._expression(_COMPARE, depth), operator)
            _check_pair(sign, operand, right, operator)
            return Compare(sign, operand, right)
        if self._takes("IS"):
            return self._is_null(operand, operator)
        opposite = self._takes("NOT")
        if self._takes("IN"):
            found: Condition = self._within(operand, depth)
        elif self._takes("LIKE"):
            found = self._like(operand, operator)
        else:
            self._next()
            found = self._between(operand, operator, depth)
        return Opposite(found) if opposite else found

    def _is_null(self, operand: Operand, operator: Token) -> Condition:
        opposite = self._takes("NOT")
        if not self._takes("NULL"):
            raise self._wrong("NULL is expected here")
        if isinstance(operand, Literal | Arithmetic):
            raise FilterError(operator.at, "IS NULL goes with a field")
        return Opposite(Missing(operand)) if opposite else Missing(operand)

    def _within(self, operand: Operand, depth: int) -> Condition:
        self._expect("(")
        values = []
        while True:
            begin = self._now
            value = self._expression(_COMPARE, depth + 1)
            if not isinstance(value, Literal):
                raise FilterError(begin.at, "IN takes texts, numbers, dates, TRUE and FALSE")
            _check_pair("=", operand, value, begin)
            values.append(value)
            if not self._takes(","):
                break
        self._expect(")")
        return Within(operand, tuple(values))

    def _like(self, operand: Operand, operator: Token) -> Condition:
        if isinstance(operand, Literal | Arithmetic | Number):
            raise FilterError(operator.at, "LIKE goes with a header, the key, the value, or a part of the value")
        pattern = self._text("a pattern in single quotes")
        escape = None
        if self._takes("ESCAPE"):
            token = self._text("a character in single quotes")
            if len(token.text) != 1:
                raise FilterError(token.at, "ESCAPE takes one character")
            escape = token.text
        return Like(operand, segments(pattern.text, escape, pattern.at))

    def _between(self, operand: Operand, operator: Token, depth: int) -> Condition:
        low = self._operand(self._expression(_COMPARE, depth), operator)
        if not self._takes("AND"):
            raise self._wrong("AND is expected here, as in BETWEEN 1 AND 5")
        high = self._operand(self._expression(_COMPARE, depth), operator)
        for sign, bound in ((">=", low), ("<=", high)):
            _check_pair(sign, operand, bound, operator)
        return Both((Compare(">=", operand, low), Compare("<=", operand, high)))

    def _calculated(self, sign: Token, left: Operand | Condition, right: Operand | Condition) -> Arithmetic:
        sides = self._operand(left, sign), self._operand(right, sign)
        if any(_kind(side) in ("text", "truth") for side in sides):
            raise FilterError(sign.at, f"{sign.text} needs numbers")
        depth = 1 + max(side.depth if isinstance(side, Arithmetic) else 0 for side in sides)
        if depth > DEEPEST:
            raise FilterError(sign.at, f"calculations are nested at most {DEEPEST} deep")
        return Arithmetic(sign.text, *sides, depth, sides[0].at)

    # -- what an expression begins with

    def _first(self, depth: int) -> Operand | Condition:
        token = self._next()
        if token.kind == "number":
            return Literal(number_literal(token.text, token.at), token.at)
        if token.kind == "text":
            return Literal(token.text, token.at)
        if token.kind == "word":
            return self._first_word(token, depth)
        if token.kind == "mark" and token.text == "(":
            found = self._expression(0, depth + 1)
            self._expect(")")
            return found
        if token.kind == "mark" and token.text in ("+", "-"):
            return self._signed(token, depth)
        if token.text == "||":
            raise FilterError(token.at, _JOINS_TAGS)
        if token.kind == "name":
            raise FilterError(token.at, "a text is in single quotes; a name comes after header. or value.")
        raise FilterError(token.at, "a field, a text or a number is expected here")

    def _signed(self, sign: Token, depth: int) -> Operand:
        operand = self._operand(self._expression(_MULTIPLY, depth + 1), sign)
        if isinstance(operand, Literal) and not isinstance(operand.value, str | bool):
            return Literal(-operand.value if sign.text == "-" else operand.value, sign.at)
        return self._calculated(Token("mark", sign.text, sign.at), Literal(0, sign.at), operand)

    def _first_word(self, token: Token, depth: int) -> Operand | Condition:
        if token.text in ("offset", "partition", "timestamp") and self._now.kind != "text":
            return Number(token.text, token.at)
        if token.text == "key":
            return Key(token.at)
        if token.text == "value":
            steps = self._steps()
            return Path(steps, token.at) if steps else Whole(token.at)
        if token.text == "header":
            return self._header(token)
        word = token.text.upper()
        if word == "NOT":
            return Opposite(self._condition(self._expression(_NOT, depth + 1)))
        if word in ("TRUE", "FALSE"):
            return Literal(word == "TRUE", token.at)
        if word == "TIMESTAMP":
            date = self._text("a date in single quotes")
            return Literal(date_literal(date.text, date.at), token.at)
        if word == "NULL":
            raise FilterError(token.at, "nothing is equal to NULL; write IS NULL or IS NOT NULL")
        if word in KEYWORDS:
            raise FilterError(token.at, f"a field, a text or a number is expected here, not {word}")
        hint = "a name with other characters than letters, digits and _ is in double quotes"
        raise FilterError(token.at, f"{token.text[:50]} is no field; fields are {_NAMES}; {hint}")

    def _header(self, token: Token) -> Header:
        if not self._takes("."):
            raise self._wrong("the header's name is expected here, as in header.region")
        name = self._name()
        if self._now.text in (".", "[") and self._now.kind == "mark":
            raise self._wrong('a header has no parts; a name with a dot is in double quotes, as in header."a.b"')
        return Header(name, token.at)

    def _steps(self) -> tuple[str | int, ...]:
        steps: list[str | int] = []
        while True:
            if self._takes("."):
                steps.append(self._name())
            elif self._takes("["):
                minus = self._takes("-")
                token = self._next()
                if token.kind != "number" or not token.text.isdecimal() or len(token.text) > 9:
                    raise FilterError(token.at, "the number of an item is expected here, as in value.items[0]")
                steps.append(-int(token.text) if minus else int(token.text))
                self._expect("]")
            else:
                return tuple(steps)

    def _name(self) -> str:
        token = self._next()
        if token.kind not in ("word", "name"):
            raise FilterError(token.at, 'a name is expected here, in double quotes if it is not a word: "odd name"')
        return token.text

    # -- tokens

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        found = self._tokens[self._at]
        if found.kind != "end":
            self._at += 1
        return found

    def _keyword(self, ahead: int = 0) -> str:
        """Return the keyword at this place in upper case, or an empty text."""
        token = self._tokens[min(self._at + ahead, len(self._tokens) - 1)]
        word = token.text.upper() if token.kind == "word" else ""
        return word if word in KEYWORDS else ""

    def _takes(self, text: str) -> bool:
        """Skip a keyword or a mark if it is the current token, and return whether it was."""
        if self._keyword() == text or (self._now.kind == "mark" and self._now.text == text):
            self._at += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._takes(mark):
            raise self._wrong(f"{mark} is expected here")

    def _text(self, what: str) -> Token:
        token = self._next()
        if token.kind != "text":
            raise FilterError(token.at, f"{what} is expected here")
        return token

    def _wrong(self, reason: str) -> FilterError:
        return FilterError(self._now.at, reason)

    # -- kinds

    def _operand(self, found: Operand | Condition, operator: Token) -> Operand:
        if isinstance(found, Operand):
            return found
        raise FilterError(operator.at, f"{operator.text} needs a field, a text or a number, not a condition")

    def _condition(self, found: Operand | Condition) -> Condition:
        if isinstance(found, Condition):
            return found
        if isinstance(found, Header | Path):
            return Truth(found)
        if isinstance(found, Literal) and isinstance(found.value, bool):
            return Always(found.value)
        raise FilterError(found.at, "this is no condition; compare it, as in key = 'a'")


def _kind(operand: Operand) -> str:
    """Return "text", "number" or "truth" for an operand that is always of this kind; otherwise an empty text."""
    if isinstance(operand, Literal):
        return "truth" if isinstance(operand.value, bool) else "text" if isinstance(operand.value, str) else "number"
    return "number" if isinstance(operand, Number | Arithmetic) else ""


def _check_pair(sign: str, left: Operand, right: Operand, operator: Token) -> None:
    """Raise FilterError for a comparison that no record can satisfy."""
    kinds = {_kind(left), _kind(right)} - {""}
    if len(kinds) > 1:
        hint = "; a date is TIMESTAMP '2026-01-31T12:00:00Z'" if kinds == {"text", "number"} else ""
        names = {"text": "a text", "number": "a number", "truth": "TRUE or FALSE"}
        pair = " with ".join(sorted(names[each] for each in kinds))
        raise FilterError(operator.at, f"{pair} cannot be compared{hint}")
    if "truth" in kinds and sign not in ("=", "<>"):
        raise FilterError(operator.at, "TRUE and FALSE can only be compared with = and <>")
