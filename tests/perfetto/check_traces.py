"""Lets Perfetto's own code judge traces: each alone, and all as one.

usage: check_traces.py FILE...

Prints what is wrong, and exits with 1 if anything is. The last line is a JSON
object of what Perfetto shows of all files together: slices, instants, counter
values, flows and stack samples.

The engine is older than the packet of stack samples, and ignores it. What such
a packet names (stacks, functions, modules) is older: so samples are shown to the
engine again, in the packet that it has for samples of Linux's perf.
"""

import json
import sys

from google.protobuf.message import DecodeError
from perfetto.protos.perfetto.trace import perfetto_trace_pb2
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
        wrong += faults(engine)
        result = shown(engine)
    with Engine(as_perf_samples(data)) as engine:
        wrong += faults(engine)
        result["samples"] = samples(engine)
    return wrong, result


def as_perf_samples(data):
    """The trace, with stack samples as the engine knows them."""
    trace = perfetto_trace_pb2.Trace.FromString(data)
    for packet in trace.packet:
        if not packet.HasField("stack_sample"):
            continue
        sample = packet.stack_sample
        new = perfetto_trace_pb2.PerfSample(
            cpu=0,
            pid=sample.task_context.pid,
            tid=sample.task_context.tid,
            callstack_iid=sample.callstack_iid,
            timebase_count=sample.primary_weight,
        )
        packet.perf_sample.CopyFrom(new)
    return trace.SerializeToString()


def samples(engine):
    """Samples as (time, pid, tid, functions), the outermost function first."""
    places = engine.query(
        "select c.id, c.parent_id as above, f.name from stack_profile_callsite c "
        "join stack_profile_frame f on c.frame_id = f.id"
    )
    places = {place["id"]: place for place in places}

    def stack(place):
        functions = []
        while place is not None:
            functions.append(places[place]["name"])
            place = places[place]["above"]
        return functions[::-1]

    rows = engine.query(
        "select s.ts, p.pid, t.tid, s.callsite_id as place from perf_sample s "
        "join thread t using (utid) join process p using (upid) order by s.ts, t.tid"
    )
    return [[row["ts"], row["pid"], row["tid"], stack(row["place"])] for row in rows]


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
