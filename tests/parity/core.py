"""Rows, what a program was seen to do, and how two sightings are compared."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pathlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

HERE = pathlib.Path(__file__).parent
DATA = HERE / "data"
ROW_IDS: dict[str, list[str]] = json.loads((DATA / "row_ids.json").read_text())
"""All rows of each section: the tests and the table of reasons must cover them."""

Program = Callable[[Any], Any]
"""It takes a framework."""

KINDS = ("same", "superset", "must differ")
MODES = ("eager", "jit", "vmap")
"""How jaxfn runs what a program passes to `fw.call`, `fw.grad`, `fw.jvp`, ..."""

EAGER = ("eager",)
"""For programs that look at values inside a rule: compiled, there are none to see."""


@dataclasses.dataclass(eq=False)
class Row:
    """One behaviour, as a program of both frameworks, or one of each.

    Attributes:
        id: of the row.
        kind: "same": both programs are seen to do the same. "superset" (torch refuses,
            or is wrong in silence) and "must differ" (what torch does can't be, or
            would harm): jaxfn does what `expected` returns, and torch does not.
        what: the behaviour in one line.
        programs: of each framework.
        modes: that jaxfn runs in.
        own_words: does Python, or the program itself, raise the row's errors? Then
            there is no class for them to name.
        since: First release of torch that has it, if newer than most recordings.
        says: Further words of jaxfn's errors, each in one of them; or their classes.
        expected: See `expect`.
    """

    id: str
    kind: str
    what: str
    programs: dict[str, Program]
    modes: tuple[str, ...]
    own_words: bool
    since: str
    says: tuple[str, ...]
    expected: Program | None

    def jaxfn(self, program: Program) -> Row:
        """Decorate jaxfn's own program, where one text can't serve both."""
        self.programs["jaxfn"] = program
        return self

    def expect(self, expected: Program) -> Program:
        """Decorate `expected`, where it is long: below the program."""
        self.expected = expected
        return expected

    def seen(self, fw: Any) -> Any:
        """What the framework's program does."""
        return attempt(lambda: self.programs[fw.name](fw))

    def is_in(self, version: str) -> bool:
        """Does this version of torch have it?"""
        return _numbers(self.since) <= _numbers(version)


def _numbers(version: str) -> list[int]:
    return [int(x) for x in version.split(".") if x]


ROWS: dict[str, Row] = {}


def row(
    id: str,
    kind: str,
    what: str,
    *,
    modes: tuple[str, ...] = MODES,
    own_words: bool = False,
    since: str = "",
) -> Callable[[Program], Row]:
    """Register a program, which takes a framework (see `frameworks`), as a row."""

    def register(program: Program) -> Row:
        assert kind in KINDS, kind
        assert id not in ROWS, f"two rows {id}"
        programs = {"torch": program, "jaxfn": program}
        further = [getattr(program, "says", ()), getattr(program, "expected", None)]
        ROWS[id] = Row(id, kind, what, programs, modes, own_words, since, *further)
        return ROWS[id]

    return register


def expect(expected: Program) -> Callable[[Program], Program]:
    """Say, beneath `row`, what jaxfn must be seen to do.

    It uses plain JAX, or a formula, or `Raises` and `Warns`; never jaxfn itself.
    """
    return _noting("expected", expected)


def raises(kind: type[BaseException], *parts: str) -> Callable[[Program], Program]:
    """Say, beneath `row`, that jaxfn raises this: see `Raises`."""
    return expect(lambda fw: Raises(kind, *parts))


def says(*words: str) -> Callable[[Program], Program]:
    """Say, beneath `row`, further words of jaxfn's errors: see `Row`."""
    return _noting("says", words)


def _noting(name: str, value: Any) -> Callable[[Program], Program]:
    def note(program: Program) -> Program:
        setattr(program, name, value)
        return program

    return note


def load() -> tuple[str, ...]:
    """Import all modules of rows; the sections that there are."""
    found = sorted(path.stem for path in HERE.glob("rows_*.py"))
    for name in found:
        importlib.import_module(f"tests.parity.{name}")
    return tuple(sorted({name.split("_")[1][0].upper() for name in found}))


def recorded(section: str) -> Any:
    """What torch was seen to do, for each row of a section; and its version."""
    return json.loads((DATA / f"{section.lower()}.json").read_text())


NEWEST = recorded("newest")
"""The same of the newest torch, for rows that others lack or do in another way."""


def latest(section: str) -> dict[str, Any]:
    """What the newest torch was seen to do, for each row of a section."""
    ids, rows = set(ROW_IDS[section]), recorded(section)["rows"]
    return rows | {id: x for id, x in NEWEST["rows"].items() if id in ids}


# ---- seeing


class Failure:
    """An exception that a program was seen to raise."""

    def __init__(self, error: BaseException) -> None:
        self.bases = [base.__name__ for base in type(error).__mro__]
        found = getattr(error, "__notes__", [])
        notes = [n for n in found if "JAX_TRACEBACK_FILTERING" not in n]
        self.message = "\n".join([str(error), *notes])

    def __repr__(self) -> str:
        return f"{self.bases[0]}: {self.message}"


class Warned:
    """A result, and the warnings that came before it."""

    def __init__(self, result: Any, given: list[Failure]) -> None:
        self.result, self.given = result, given

    def __repr__(self) -> str:
        return f"{self.result} after {self.given}"


def attempt(f: Callable[[], Any]) -> Any:
    """What `f()` is seen to do: its value, or its error; and its warnings."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        # A process reads an entry that another one is writing; see pyproject.toml.
        warnings.filterwarnings("ignore", "Error .* persistent compilation cache")
        try:
            result = describe(f())
        except Exception as error:  # noqa: BLE001  (whatever it raises is what is seen)
            result = Failure(error)
    if not given:
        return result
    return Warned(result, [Failure(w.message) for w in given])  # type: ignore[arg-type]


def describe(value: Any) -> Any:
    """A value in terms of JSON, Failures and Warneds; arrays with dtype and shape."""
    if value is None or isinstance(
        value, (bool, int, float, str, Failure, Warned, Raises, Warns)
    ):
        return value
    if isinstance(value, complex):
        return {"$complex": [value.real, value.imag]}
    if isinstance(value, dict):
        return {str(key): describe(x) for key, x in value.items()}
    if isinstance(value, list):
        return [describe(x) for x in value]
    if isinstance(value, tuple):
        return {"$tuple": [describe(x) for x in value], "of": type(value).__name__}
    if hasattr(value, "detach"):
        value = value.detach().resolve_conj().numpy()
    array = np.asarray(value)
    assert array.dtype != object, f"{type(value)} can't be described"
    kind = array.dtype.kind
    items = np.stack([array.real, array.imag], -1) if kind == "c" else array
    return {
        "$array": items.tolist(),
        "dtype": array.dtype.name,
        "shape": list(array.shape),
    }


def to_json(seen: Any) -> Any:
    """What is recorded of what was seen: of messages, only the first sentence."""
    if isinstance(seen, Failure):
        return {"$error": seen.bases[0], "says": first_sentence(seen.message)}
    if isinstance(seen, Warned):
        given = [to_json(w) for w in seen.given]
        return {"$warned": given, "result": to_json(seen.result)}
    if isinstance(seen, dict):
        return {key: to_json(x) for key, x in seen.items()}
    if isinstance(seen, list):
        return [to_json(x) for x in seen]
    return seen


def first_sentence(message: str) -> str:
    """Up to the first full stop, without what differs from run to run."""
    message = _plain(message).replace("(Triggered internally at", ". ")
    return re.split(r"\.\s|\n| \. ", message, maxsplit=1)[0].strip().rstrip(".")


def _plain(message: str) -> str:
    """A message without places: where classes were made, and lines of torch's files."""
    message = re.sub(r'(?<=\.cpp"):\d+', "", message)
    return re.sub(r"[\w.]+\.(?:<locals>\.)?(?=\w+'>)|[\w.]+\.<locals>\.", "", message)


# ---- comparing


class Raises:
    """Expected: an error of a type, whose message has these parts, in any order."""

    def __init__(self, kind: type[BaseException], *parts: str) -> None:
        assert parts, "say what the message must have"
        self.kind, self.parts = kind, parts

    def __repr__(self) -> str:
        return f"{self.kind.__name__} with {self.parts}"


class Warns:
    """Expected: a result, after one warning of a type that has these parts."""

    def __init__(self, result: Any, kind: type[Warning], *parts: str) -> None:
        self.result, self.given = result, Raises(kind, *parts)

    def __repr__(self) -> str:
        return f"{self.result} after {self.given}"


def compare(ours: Any, wanted: Any, *, own_words: bool = False, at: str = "") -> None:
    """Assert that what was seen is what was recorded of torch, or is expected."""

    def go(a: Any, b: Any, key: Any) -> None:
        compare(a, b, own_words=own_words, at=f"{at}[{key}]")

    text = f"{at or 'the result'}: expected {wanted}, got {ours}"
    if isinstance(wanted, Raises):
        assert isinstance(ours, Failure), text
        assert wanted.kind.__name__ in ours.bases, text
        assert all(part in ours.message for part in wanted.parts), text
    elif isinstance(wanted, Warns):
        assert isinstance(ours, Warned), text
        assert len(ours.given) == 1, text
        compare(ours.given[0], wanted.given, at=f"{at} warning")
        compare(ours.result, describe(wanted.result), at=at)
    elif isinstance(wanted, dict) and "$error" in wanted:
        assert isinstance(ours, Failure), text
        _compare_errors(ours, wanted, own_words, text)
    elif isinstance(wanted, dict) and "$warned" in wanted:
        assert isinstance(ours, Warned), text
        assert len(ours.given) == len(wanted["$warned"]), text
        for i, (a, b) in enumerate(zip(ours.given, wanted["$warned"], strict=True)):
            _compare_errors(a, b, True, f"warning {i} of {text}")
        go(ours.result, wanted["result"], "result")
    elif isinstance(wanted, dict) and "$array" in wanted:
        assert isinstance(ours, dict), text
        assert [ours.get(k) for k in ("dtype", "shape")] == [
            wanted[k] for k in ("dtype", "shape")
        ], text
        # Each side rounds in float32, in an order of its own.
        np.testing.assert_allclose(
            ours["$array"], wanted["$array"], rtol=1e-6, atol=1e-7, err_msg=text
        )
    elif isinstance(wanted, dict):
        assert isinstance(ours, dict), text
        assert list(ours) == list(wanted), text
        for key, x in wanted.items():
            go(ours[key], x, key)
    elif isinstance(wanted, list):
        assert isinstance(ours, list), text
        assert len(ours) == len(wanted), text
        for i, x in enumerate(wanted):
            go(ours[i], x, i)
    else:
        assert type(ours) is type(wanted), text
        assert ours == (pytest.approx(wanted) if isinstance(ours, float) else wanted), (
            text
        )


def _compare_errors(ours: Failure, torch: Any, own_words: bool, text: str) -> None:
    """torch's first sentence is in ours, which goes on to name the class and rule."""
    assert torch["$error"] in ours.bases, text
    before, found, after = _plain(ours.message).partition(torch["says"])
    assert found, text
    if not own_words:
        assert _RULE.search(before + after), f"no class and rule: {text}"
        assert len(after) > 20, f"torch's words only: {text}"


_RULE = re.compile(r"`[A-Z]\w*\.[a-z_]\w*")


def errors(seen: Any) -> Iterator[str]:
    """The classes and the message of each error in what was seen."""
    if isinstance(seen, Failure):
        yield " ".join([*seen.bases, seen.message])
    elif isinstance(seen, (dict, list)):
        for part in seen.values() if isinstance(seen, dict) else seen:
            yield from errors(part)
    elif isinstance(seen, Warned):
        yield from errors([seen.result, *seen.given])


def differ(ours: Any, theirs: Any) -> bool:
    """Is jaxfn seen to do something else than torch?"""
    try:
        compare(ours, theirs, own_words=True)
    except AssertionError:
        return True
    return False
