"""Plans as pictures: what the graph says is what the program is, and who draws it."""

import re
import shutil
from xml.etree import ElementTree

import pytest

import tapeflow as tp


def training_step():
    """A step that has all of it: inputs, state, constants, views, groups, .grad, a guard."""
    w = tp.tensor([[0.5, -1.0], [2.0, 0.25]], requires_grad=True)

    def step(x, y):
        loss = tp.mean((tp.tanh(x @ w.T) - y) ** 2)
        loss.backward()
        if loss > 0:
            with tp.no_grad():
                w.assign_sub(0.1 * w.grad)
        return loss

    x, y = tp.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), tp.zeros((3, 2))
    return tp.freeze(step, x, y)


def parsed(text):
    """Nodes (name -> label) and edges of a graph; every line is known, and every bracket is closed."""
    nodes, edges, depth = {}, [], 0
    for line in text.splitlines():
        node = re.fullmatch(r' *(\w+) \[label="([^"]+)"(, (shape|style)=("[\w,]+"|\w+))*\];', line)
        edge = re.fullmatch(r" *(\w+) -> (\w+);", line)
        if node:
            assert node[1] not in nodes, line
            nodes[node[1]] = node[2]
        elif edge:
            edges.append((edge[1], edge[2]))
        else:
            depth += line.count("{") - line.count("}")
            assert re.fullmatch(r"digraph plan \{|  subgraph cluster\d+ \{.*|  rankdir=.*|\s*\}", line), line
    assert depth == 0
    return nodes, edges


def test_the_graph_is_the_program():
    plan = training_step()
    nodes, edges = parsed(plan.to_dot())
    assert {name for edge in edges for name in edge} <= set(nodes)
    boxes = {name: label for name, label in nodes.items() if re.match("v|guard", name)}
    made = {f"v{i.out}": i for i in plan.instructions if i.op >= 0}
    assert set(made) <= set(boxes) and len([n for n in boxes if n.startswith("guard")]) == 1
    assert all(
        label.split(r"\n")[0] == repr(made[n]).split(" = ")[1].split("[")[0] for n, label in boxes.items() if n in made
    )
    for name, instr in made.items():
        sources = {re.sub(r"^c(\d+).*", r"v\1", a) for a, b in edges if b == name}
        assert sources == {f"v{k}" for k in instr.ins}, instr
    ends = [label for name, label in nodes.items() if name.startswith("end")]
    (weight,) = (name[1:] for name, label in nodes.items() if label == rf"tensor %{name[1:]}\nfloat32[2, 2]")
    assert ends == ["result 0", f"assign to %{weight}", f".grad of %{weight}"]
    assert plan.to_dot() == plan.to_dot()


def test_what_runs_as_one_step_stands_in_one_frame():
    fused, alone = (tp.freeze(lambda x: tp.sin(x) * 2 + x, tp.ones(9), passes=p) for p in (("fuse",), ()))
    assert fused.to_dot().count("subgraph") == 1 and alone.to_dot().count("subgraph") == 0
    assert tp.freeze(lambda x: x.T, tp.ones((2, 3))).to_dot().count("style=dashed") == 1


def test_files_by_their_endings(tmp_path, monkeypatch):
    plan = training_step()
    text = plan.to_dot(tmp_path / "plan.dot")
    assert (tmp_path / "plan.dot").read_text() == text == plan.to_dot(str(tmp_path / "plan.GV"))
    with pytest.raises(tp.PlanError, match=r"plan\.jpeg.*may end in \.dot"):
        plan.to_dot(tmp_path / "plan.jpeg")
    program = tmp_path / "dot"
    program.write_text('#!/bin/sh\necho "drawn with $1"\ncat\n')
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(program) if name == "dot" else None)
    plan.to_dot(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text() == f"drawn with -Tsvg\n{text}" == plan._repr_svg_()
    program.write_text("#!/bin/sh\necho no fonts >&2; exit 3\n")
    with pytest.raises(tp.PlanError, match="could not draw the plan: no fonts"):
        plan.to_dot(tmp_path / "plan.pdf")
    assert not (tmp_path / "plan.pdf").exists()


def test_without_graphviz_text_remains(tmp_path, monkeypatch):
    plan = training_step()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(tp.PlanError, match="needs the program `dot`"):
        plan.to_dot(tmp_path / "plan.svg")
    assert plan._repr_svg_() is None and list(tmp_path.iterdir()) == []
    assert plan.to_dot(tmp_path / "plan.dot") == (tmp_path / "plan.dot").read_text()


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_draws_it(tmp_path):
    plan = training_step()
    plan.to_dot(tmp_path / "plan.svg")
    picture = ElementTree.fromstring((tmp_path / "plan.svg").read_text(encoding="utf-8"))
    shown = {text.text for text in picture.iter() if text.tag.endswith("}text")}
    assert {"matmul", "tanh", "guard", "result 0"} <= shown


def test_a_plan_goes_where_a_device_is():
    plan = training_step()
    assert plan.to("cpu") is plan
    with pytest.raises(tp.DeviceError):
        plan.to("opencl:no such device")
