"""The demo's pictures show exactly the deliveries."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from jobs.demo.picture import DeliveryMark, Moment, Story, svg, terminal

SENDERS = ["nyc/a", "nyc/b", "nyc/c"]
ORDER = [DeliveryMark(seqno, SENDERS[seqno * seqno % 3]) for seqno in range(4, 64)]
STORY = Story({"observer-1": ORDER, "observer-2": ORDER, "observer-3": ORDER}, [Moment(30, "killed & <back>")])


def ticks(picture: str, kind: str) -> list[tuple[float, str]]:
    """Return each row's ticks from left to right: row, place and colour."""
    root = ElementTree.fromstring(picture)
    found = []
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        if path.get("class") == kind:
            places = re.findall(r"M([\d.]+) ([\d.]+)", path.get("d", ""))
            found += [(float(top), float(place), path.get("stroke", "")) for place, top in places]
    return (
        [(place, colour) for _, place, colour in sorted(found)] if kind == "observer" else sorted(t[1:] for t in found)
    )


def test_terminal() -> None:
    """A mark in the lane of its sender, and the same letters in each observer's row."""
    lines = terminal(STORY, 80, 30)
    assert all(len(line) <= 80 for line in lines)
    lanes = {line.split()[1]: line.split()[2] for line in lines if "nyc/" in line}
    assert set(lanes) == {mark.sender for mark in ORDER}
    assert all("".join(column).count("●") == 1 for column in zip(*lanes.values(), strict=True))
    rows = [line.split()[1] for line in lines if "observer" in line]
    assert len(set(rows)) == 1
    letters = {line.split()[1]: line.split()[0] for line in lines if "nyc/" in line}
    assert rows[0] in "".join(letters[mark.sender] for mark in ORDER)
    assert lines[-1].endswith("┊ 30: killed & <back>")


def test_many_senders_and_few_columns() -> None:
    marks = [DeliveryMark(seqno, f"nyc/member-{seqno % 70}") for seqno in range(1, 1000)]
    lines = terminal(Story({"o": marks}), 60, 990)
    assert len(lines) == 1 + 12 + 1 + 1
    assert max(map(len, lines)) <= 60
    assert "seqno 9" in lines[0]
    assert terminal(Story({"o": []}), 80, 1) == []
    ElementTree.fromstring(svg(Story({"o": []}), "nothing"))


def test_svg() -> None:
    """Each message is one tick of a sender, and each observer's row has all of them in the same places."""
    picture = svg(STORY, "a < b & c")
    assert len(ticks(picture, "sender")) == len(ORDER)
    rows = ticks(picture, "observer")
    count = len(ORDER)
    assert rows[:count] == rows[count : 2 * count] == rows[2 * count :]
    assert "killed &amp; &lt;back&gt;" in picture


def test_an_observer_that_differs_shows() -> None:
    swapped = [*ORDER[:10], ORDER[11], ORDER[10], *ORDER[12:]]
    assert swapped != ORDER
    assert ORDER[10].sender != ORDER[11].sender
    for other in (swapped, ORDER[1:], [ORDER[0], *ORDER]):
        story = Story({"observer-1": ORDER, "observer-2": other})
        rows = ticks(svg(story, "x"), "observer")
        assert rows[: len(ORDER)] != rows[len(ORDER) :]
        shown = [line.split()[1] for line in terminal(story, 100, 4) if "observer" in line]
        assert shown[0] != shown[1]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.text()), max_size=30),
    st.integers(1, 200),
    st.integers(-5, 100),
    st.text(),
)
def test_any_story(marks: list[tuple[int, str]], width: int, middle: int, title: str) -> None:
    drawn = [DeliveryMark(*mark) for mark in sorted(marks)]
    terminal(Story({"o": drawn}, [Moment(3, title)]), width, middle)
    svg(Story({"o": drawn}, [Moment(3, title)]), title)
