"""Whom to call about a mirror: said where people look on call, and nowhere when nobody is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mirrorbook_airflow.markdown import format_plan

from mirror_core.cli.runs import print_plan
from mirror_core.decide import failback_plan, failover_plan
from mirror_core.decide.mirror_snapshot import MirrorSnapshot
from mirror_core.kafka.config import load_config
from mirror_core.model.errors import BadRequest
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Plan
from mirror_core.page.mirror_page import make_mirror_page
from mirror_core.state.mirror_link import MirrorLink
from tests.support import failback_views, plan_views
from tests.support.page_views import MIRROR, NAME, NOW, page, seen, shown, told
from tests.support.page_views import row as partition_row
from tests.support.run_pages import PLAN
from tests.support.sentences import format_sentence

failed_over = plan_views.view
came_back = failback_views.view
WHO = "payments on call, +47 1"
HEAD = "clusters:\n  east: {bootstrap.servers: '127.0.0.1:1'}\n  west: {bootstrap.servers: '127.0.0.1:2'}\nmirrors:\n"


def configured(folder: Path, mirrors: str) -> Path:
    path = folder / "mirrorbook.yaml"
    path.write_text(f"{HEAD}{mirrors}")
    return path


def test_an_owner_is_named_in_the_file_also_for_the_way_home(tmp_path: Path) -> None:
    config = load_config(configured(tmp_path, f"  orders: {{owner: ' {WHO}'}}\n  other: {{switch: []}}\n"))
    assert [config.owner(MirrorName(name)) for name in ("orders", "orders-back", "other", "unknown")] == [
        WHO,
        WHO,
        "",
        "",
    ]


@pytest.mark.parametrize("wrong", ["[ann]", "", "' '", "7", r'"a\nb"', r'"a\u202eb"', "{phone: 1}", "x" * 201])
def test_what_is_no_owner_is_refused_where_it_stands(tmp_path: Path, wrong: str) -> None:
    path = configured(tmp_path, f"  orders: {{owner: {wrong}}}\n" if wrong else "  orders: {owner: }\n")
    with pytest.raises(BadRequest, match=format_sentence("owner_must_be_one_line", path)):
        load_config(path)


def test_a_plan_names_the_owner_first_and_its_hash_does_not_depend_on_it(
    failed_over: MirrorSnapshot, came_back: failback_plan.FailbackSnapshot
) -> None:
    there = [failover_plan.decide_failover(view).plan for view in (failed_over, replace(failed_over, owner=WHO))]
    back = [failback_plan.decide_failback(view).plan for view in (came_back, replace(came_back, owner=WHO))]
    for nobody, somebody in (there, back):
        assert next(iter(somebody.figures.items())) == (FigureKey.OWNER, WHO)
        assert FigureKey.OWNER not in nobody.figures
        assert somebody.hash == nobody.hash


def owned(plan: Plan) -> Plan:
    return replace(plan, figures={FigureKey.OWNER: WHO, **plan.figures})


def test_the_plans_head_says_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(owned(PLAN), MIRROR, (), as_json=False)
    printed = capsys.readouterr().out
    assert printed.count(WHO) == 1
    assert printed.index(WHO) < printed.index("Steps")
    asked = format_plan(owned(PLAN))
    assert asked.count(WHO) == 1
    assert asked.split("\n\n")[1] == f"Owner: {WHO}"
    print_plan(PLAN, MIRROR, (), as_json=False)
    for text in (capsys.readouterr().out, format_plan(PLAN)):
        assert "owner" not in text.lower()
        assert "None" not in text


def test_the_page_of_a_mirror_says_it(tmp_path: Path) -> None:
    config = load_config(configured(tmp_path, f"  {NAME}: {{owner: '{WHO}'}}\n"))
    link = MirrorLink(config, MIRROR, config.cluster("east"), config.cluster("west"))
    known = replace(told(), links={NAME: link})
    assert f"Owner: {WHO}" in shown(make_mirror_page(MIRROR, known, seen(partition_row(0)), None, NOW))
    assert "Owner" not in shown(page(seen(partition_row(0))))


def test_an_rto_holds_for_the_way_home_and_stands_in_the_plan_not_in_its_hash(
    tmp_path: Path, failed_over: MirrorSnapshot
) -> None:
    config = load_config(configured(tmp_path, "  orders: {rto: 5m}\n"))
    assert [config.rto_s(MirrorName(name)) for name in ("orders", "orders-back", "other")] == [300.0, 300.0, None]
    free, limited = (failover_plan.decide_failover(replace(failed_over, rto_s=rto_s)).plan for rto_s in (None, 300.0))
    assert limited.figures[FigureKey.RTO_S] == 300.0
    assert FigureKey.RTO_S not in free.figures
    assert limited.hash == free.hash


@pytest.mark.parametrize("wrong", ["5", "0", "-1s", "soon", "true", "[5m]"])
def test_what_is_no_rto_is_refused_where_it_stands(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(BadRequest, match=r"mirrors\.orders\.rto: "):
        load_config(configured(tmp_path, f"  orders: {{rto: {wrong}}}\n"))
