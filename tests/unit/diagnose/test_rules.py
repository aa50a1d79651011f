"""Rules: all of them are registered, each says what it finds and needs, and one query makes a rule."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from planted import Planted

from probe.connection import Connection
from probe.diagnose import rules
from probe.diagnose.change.report import Change, Measure
from probe.diagnose.rule import Finding, Rule, Sql
from probe.diagnose.rules import ON_EVIDENCE, ON_TABLES, RULES
from probe.tables import TABLES

HANG, WHY = (Path(__file__).parents[3] / "docs/how-to" / page for page in ("hang.md", "why.md"))


def test_every_rule_in_the_folder_is_registered_once() -> None:
    rooms = pkgutil.walk_packages(rules.__path__, f"{rules.__name__}.")
    modules = [importlib.import_module(each.name) for each in rooms]
    declared = [rule for module in modules for rule in vars(module).values() if isinstance(rule, Rule)]
    assert sorted(rule.code for rule in declared) == sorted(rule.code for rule in RULES)
    assert len({rule.code for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_says_in_a_sentence_what_it_finds_and_names_tables_that_exist(rule: Rule[object]) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.code) and re.fullmatch(r"[A-Z].*\.", rule.doc)
    assert set(rule.needs) <= {table.name for table in TABLES}
    assert not isinstance(rule.find, Sql) or set(re.findall(r"\b(?:python|probe|host)\.\w+", rule.find.sql)) == {
        *rule.needs
    }


def test_users_can_run_the_sql_of_every_rule() -> None:
    planted = Planted()
    for rule in RULES:
        if sql := rule.query("step > 7"):
            planted.query(sql)


def test_the_how_to_page_lists_the_code_of_every_rule_on_evidence() -> None:
    rows = re.findall(r"^\| .* \| ((?:`[a-z-]+`(?:, )?)+) \|$", HANG.read_text(), re.MULTILINE)
    assert sorted(re.findall("`(.*?)`", " ".join(rows))) == sorted(rule.code for rule in ON_EVIDENCE)


def test_the_how_to_page_lists_the_code_of_every_rule_on_tables() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", WHY.read_text().partition("## What it finds\n")[2], re.MULTILINE)
    assert sorted(listed) == sorted(rule.code for rule in ON_TABLES)


def test_the_how_to_page_lists_what_the_object_of_a_change_has() -> None:
    of_change = WHY.read_text().partition("## What a change brought\n")[2].partition("\n## ")[0]
    keys = [re.findall("`([a-z_]+)`", row) for row in re.findall(r"^\| (`.*?) \| ", of_change, re.MULTILINE)]
    told = [name for names in keys for name in names]
    assert sorted(told) == sorted(each.name for kind in (Change, Measure) for each in fields(kind))


def test_each_row_of_a_query_is_a_finding(
    agent: Callable[..., FakeAgent], connected: Callable[..., Connection]
) -> None:
    sql = "SELECT rank, 0.5 * rank AS seconds, 7 AS workers FROM probe.agents WHERE rank > 0 ORDER BY rank"
    find = Sql(sql, "Rank {rank} loses {seconds:.1f} s.", "probe {endpoint} eval 'loader.num_workers = {workers}'")
    connection = connected(*(agent(rank=rank, world_size=3) for rank in range(3)))
    remedy = f"probe {connection.endpoint} eval 'loader.num_workers = 7'"
    assert list(find(connection)) == [
        Finding("Rank 1 loses 0.5 s.", (1,), remedy=remedy, seconds=0.5),
        Finding("Rank 2 loses 1.0 s.", (2,), remedy=remedy, seconds=1.0),
    ]
