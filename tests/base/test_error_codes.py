"""Errors have codes, which do not depend on their wording."""

from __future__ import annotations

import json
import pickle
from collections import Counter

import pytest
from words import WORDS, coded, renewed

from engine.base.errors import AttuneError, CompileError, InvalidKernel, UnknownName
from engine.cli import main


def test_each_code_has_one_message_whose_words_are_on_file() -> None:
    assert [code for code, n in Counter(code for code, _ in coded()).items() if n > 1] == []
    on_file = json.loads(WORDS.read_text(encoding="utf-8"))
    assert renewed(on_file) == on_file, "where this is meant: python tests/words.py --renew"


def test_a_reworded_message_keeps_its_name() -> None:
    on_file = json.loads(WORDS.read_text(encoding="utf-8"))
    codes = dict(coded())
    name = next(name for name, words in on_file.items() if name not in codes and len(words) > 60)
    before = on_file | {name: "Once, " + on_file[name].replace(" ", " so ", 2)}
    assert renewed(before) == on_file
    assert name not in renewed(on_file | {name: "What nobody says: " + "x" * 90})


@pytest.mark.parametrize("kind", [AttuneError, CompileError, InvalidKernel, UnknownName])
def test_an_error_keeps_its_code_when_pickled(kind: type[AttuneError]) -> None:
    error = pickle.loads(pickle.dumps(kind("Words.", code="some")))
    assert (type(error), str(error), error.code) == (kind, "Words.", "some")
    assert kind("Words.").code == ""


def test_json_output_has_the_error_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "v99", "--gpu", "L4", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "unknown_variant"
