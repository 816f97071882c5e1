"""The readiness summary and the effort model behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.model import Finding, Scan, Style, Tier
from joymigrate.report.labels import Labels
from joymigrate.rewrite import effort, readiness
from joymigrate.rewrite.effort import EffortModel


def site(
    rule: str = "JM101", tier: Tier = Tier.SAFE, path: str = "a.py", weight: float = 1.0,
    area: str = "device", message: str = "m",
) -> Finding:  # fmt: skip
    return Finding(
        rule, "name", tier, path, 1, 1, 1, 2, message, "before", area=area, weight=weight
    )


def scan_of(*findings: Finding) -> Scan:
    return Scan(Path("."), "chip", "cuda", Style.DIRECT, findings, 1)


def test_shares_are_of_all_sites() -> None:
    found = readiness.assess(
        scan_of(site(), site(), site("JM104", Tier.UNSAFE), site("JM200", Tier.REPORT))
    )
    assert found.automatic == 0.5
    assert found.automatic_unsafe == 0.75
    assert (found.sites, found.files) == (4, 1)


def test_without_sites_there_is_no_share() -> None:
    found = readiness.assess(scan_of())
    assert found.automatic is None
    assert found.minutes == 0
    assert readiness.document(found)["automatic"] is None


def test_the_manual_list_is_ordered_by_weight() -> None:
    found = readiness.assess(
        scan_of(
            site("JM210", Tier.REPORT, weight=5),
            site("JM203", Tier.REPORT, weight=480),
            site("JM200", Tier.REPORT, weight=30),
        )
    )
    assert [item.rule for item in found.manual] == ["JM203", "JM200", "JM210"]
    assert [item.rule for item in found.blockers] == ["JM203"]


def test_further_sites_in_a_file_cost_less_than_the_first() -> None:
    one_file = [site("JM200", Tier.REPORT, weight=40) for _ in range(3)]
    assert EffortModel(repeat=0.25).minutes(one_file) == [40, 10, 10]


def test_the_same_text_elsewhere_costs_less_but_kernels_are_ported_one_by_one() -> None:
    for area, costs in (("packages", [40, 10]), ("kernels", [40, 40])):
        sites = [site("JM200", Tier.REPORT, p, weight=40, area=area) for p in ("a.py", "b.py")]
        assert EffortModel(repeat=0.25).minutes(sites) == costs


def test_safe_edits_are_read_one_by_one() -> None:
    assert EffortModel(safe=2).minutes([site(), site()]) == [2, 2]


def test_the_most_specific_figure_wins() -> None:
    finding = site("JM200", Tier.REPORT, weight=40, area="kernels")
    assert EffortModel().price(finding) == 40
    assert EffortModel(report=7).price(finding) == 7
    assert EffortModel(report=7, areas={"kernels": 8}).price(finding) == 8
    assert EffortModel(report=7, areas={"kernels": 8}, rules={"JM200": 9}).price(finding) == 9


def test_an_area_figure_does_not_touch_safe_edits() -> None:
    assert EffortModel(areas={"device": 8}).price(site()) == EffortModel().safe


def test_areas_add_up() -> None:
    found = readiness.assess(
        scan_of(site(), site(area="amp"), site(area="amp", tier=Tier.UNSAFE, rule="JM140"))
    )
    assert [(area.name, area.sites) for area in found.areas] == [("amp", 2), ("device", 1)]
    assert found.areas[0].tiers == {Tier.SAFE: 1, Tier.UNSAFE: 1, Tier.REPORT: 0}


def test_the_files_with_the_most_work_come_first() -> None:
    found = readiness.assess(
        scan_of(site(path="a.py"), site(path="a.py"), site("JM200", Tier.REPORT, "b.py", weight=9))
    )
    assert [(one.path, one.sites, one.by_hand) for one in found.places] == [
        ("b.py", 1, 1),
        ("a.py", 2, 0),
    ]


def test_the_commonest_message_speaks_for_a_rule() -> None:
    found = readiness.assess(scan_of(site(message="a"), site(message="b"), site(message="b")))
    assert found.items[0].message == "b"


@given(
    st.lists(
        st.builds(
            site,
            st.sampled_from(["JM101", "JM200"]),
            st.sampled_from(list(Tier)),
            st.sampled_from(["a.py", "b.py"]),
            st.floats(0, 1000),
            st.sampled_from(["device", "amp"]),
        ),
        max_size=30,
    )
)
def test_every_breakdown_has_the_same_totals(findings: list[Finding]) -> None:
    found = readiness.assess(scan_of(*findings))
    assert sum(found.tiers.values()) == len(findings)
    assert sum(area.sites for area in found.areas) == len(findings)
    assert sum(item.sites for item in found.items) == len(findings)
    assert sum(item.minutes for item in found.items) == pytest.approx(found.minutes)
    assert sum(place.sites for place in found.places) == len(findings)
    assert sum(area.minutes for area in found.areas) == pytest.approx(found.minutes)


def test_settings_change_the_model() -> None:
    model = effort.from_settings(
        {"safe": 1, "repeat": 0.5, "kernels": 90, "JM200": 15}, ["JM200"], ["kernels"]
    )
    assert (model.safe, model.repeat) == (1.0, 0.5)
    assert model.areas == {"kernels": 90.0}
    assert model.rules == {"JM200": 15.0}


@pytest.mark.parametrize("value", [-1, "5", True, None])
def test_a_figure_is_a_number_from_zero(value: object) -> None:
    with pytest.raises(JoyError, match="must be minutes or a share"):
        effort.from_settings({"safe": value}, [], [])


def test_an_unknown_figure_names_the_nearest() -> None:
    with pytest.raises(JoyError, match="Did you mean 'unsafe'"):
        effort.from_settings({"unsave": 1}, [], [])


@pytest.mark.parametrize(
    ("minutes", "text"),
    [(0, "0 min"), (0.2, "12 s"), (5, "5 min"), (90, "1.5 h"), (480, "8.0 h"), (960, "2.0 days")],
)
def test_durations_read_as_people_say_them(minutes: float, text: str) -> None:
    assert Labels("en").duration(minutes) == text
