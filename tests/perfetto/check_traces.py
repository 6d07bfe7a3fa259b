"""Lets Perfetto's own code judge traces: each alone, and all as one.

usage: check_traces.py FILE...

Prints what is wrong, and exits with 1 if anything is. The last line is a JSON
object of what Perfetto shows of all files together: slices, instants, counter
values and flows.
"""

import json
import sys

from google.protobuf.message import DecodeError
from official_schema import unknown_fields
from trace_processor import Engine, faults


def judge(data):
    """What is wrong with a trace, and what Perfetto shows of it."""
    try:
        wrong = [f"unknown field {field}" for field in unknown_fields(data)]
    except DecodeError as error:
        wrong = [str(error)]
    with Engine(data) as engine:
        if engine.error:
            return wrong + [f"cannot be loaded: {engine.error}"], {}
        return wrong + faults(engine), shown(engine)


def shown(engine):
    """Slices as (name, category, begin, duration, depth), and the rest by kind."""
    slices = engine.query(
        "select name, category, ts, dur, depth from slice order by ts, depth, name"
    )
    counters = engine.query(
        "select t.name, c.ts, c.value from counter c join track t on c.track_id = t.id order by c.ts, t.name"
    )
    flows = engine.query(
        "select a.name as source, b.name as target, a.ts as source_ts, b.ts as target_ts from flow f "
        "join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id "
        "order by a.ts, b.ts, a.name, b.name"
    )
    processes = engine.query("select pid, name from process where pid != 0 order by pid")
    threads = engine.query("select tid, name from thread where tid != 0 order by tid")
    return {
        "slices": [[s["name"], s["category"], s["ts"], s["dur"], s["depth"]] for s in slices],
        "counters": [[c["name"], c["ts"], c["value"]] for c in counters],
        "flows": [[f["source"], f["target"], f["source_ts"], f["target_ts"]] for f in flows],
        "processes": [[p["pid"], p["name"]] for p in processes],
        "threads": [[t["tid"], t["name"]] for t in threads],
    }


def main(paths):
    if not paths:
        sys.exit("usage: check_traces.py FILE...")
    traces = []
    for path in paths:
        with open(path, "rb") as file:
            traces.append((path, file.read()))
    if len(traces) > 1:
        traces.append(("all together", b"".join(data for _, data in traces)))
    is_clean = True
    result = {}
    for name, data in traces:
        wrong, result = judge(data)
        for what in wrong[:20]:
            print(f"{name}: {what}")
        is_clean = is_clean and not wrong
    print(json.dumps(result))
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
